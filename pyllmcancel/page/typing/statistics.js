// The costs and results of a pane's requests. Times are milliseconds of one clock.
import { quantile } from "../lib/histogram.js";

// Return the time from the key to the first text of its answer; null: there was none.
export const latencyOf = (request) => (request.firstAt === null ? null : request.firstAt - request.keyAt);

// Return {computed, wasted}: tokens of a request, and those computed after a newer key had made it obsolete. A request
// that was obsolete when it was sent was wasted from its first prompt token on; the other requests' prompts were
// wanted. `next`: the newer key's request; null: there is none.
export function tokensOf(request, next = null) {
  const { sentAt, obsoleteAt, tokens, tokensWhenObsolete, entry } = request;
  const { completion_tokens = 0, prompt_tokens_done = 0, cached_tokens = 0 } = entry ?? {};
  const generated = Math.max(tokens, completion_tokens);
  const computed = generated + Math.max(0, prompt_tokens_done - cached_tokens);
  if (obsoleteAt === null) return { computed, wasted: 0 };
  if (sentAt !== null && sentAt >= obsoleteAt) return { computed, wasted: computed };
  const share = shareAfter(entry?.times, next);
  return { computed, wasted: share === null ? generated - tokensWhenObsolete : Math.round(share * generated) };
}

const AT_ONCE = 20; // milliseconds from the key to the request

// Return the share of the answer that was computed after the newer request had come, by the server's clock; null:
// unknown. The part that the page has read by then is smaller, because the page reads late on a busy machine.
function shareAfter(times, next) {
  const newer = next?.entry?.times;
  if (!times || !newer || next.sentAt === null || next.sentAt - next.keyAt > AT_ONCE) return null;
  const { first_token: begin, ended } = times;
  if (begin === null || ended === null || ended <= begin) return 0;
  return Math.min(1, Math.max(0, (ended - newer.arrived) / (ended - begin)));
}

export function figuresOf(requests) {
  const latencies = requests.map(latencyOf).filter((latency) => latency !== null);
  const open = requests.filter((request) => request.endedAt === null);
  return {
    keys: requests.length,
    last: requests.length === 0 ? null : latencyOf(requests.at(-1)),
    median: quantile(latencies, 0.5),
    open: open.length,
    ...sumsOf(requests.map((request, i) => tokensOf(request, requests[i + 1]))),
  };
}

const sumsOf = (all) => all.reduce((sums, { computed, wasted }) => ({ computed: sums.computed + computed, wasted: sums.wasted + wasted }), { computed: 0, wasted: 0 });
