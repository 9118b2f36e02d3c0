// What a pane's requests have cost and brought. Times are milliseconds of one clock.

export function median(numbers) {
  if (numbers.length === 0) return null;
  const sorted = [...numbers].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// From the key to the first text of its answer; null: there was none.
export const latencyOf = (request) => (request.firstAt === null ? null : request.firstAt - request.keyAt);

// {computed, wasted}: tokens of a request, and those of them that were computed after a newer key had made it obsolete.
// One that was obsolete when it was sent was for nobody from its first prompt token on; the others' prompts were wanted.
// `next`: the newer key's request; null: there is none.
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

// The share of the answer that was computed after the newer request had come, by the server's clock; null: not known. What
// the page has read by then says less: it reads late where the machine is busy.
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
    answered: latencies.length,
    last: requests.length === 0 ? null : latencyOf(requests.at(-1)),
    median: median(latencies),
    open: open.length,
    ...sumsOf(requests.map((request, i) => tokensOf(request, requests[i + 1]))),
  };
}

const sumsOf = (all) => all.reduce((sums, { computed, wasted }) => ({ computed: sums.computed + computed, wasted: sums.wasted + wasted }), { computed: 0, wasted: 0 });
