// A request's life in phases and in sentences. No DOM.
import { milliseconds, plural, REASONS, why } from "../lib/format.js";

// [{kind, name, seconds}]: its phases until `now` or its end.
export function phasesOf(entry, now) {
  const { t } = entry;
  const end = t.ended ?? now;
  const stop = t.cancelled ?? end; // work before the cancel was still wanted
  const phases = [];
  const add = (kind, name, from, until) => { if (from !== null && until >= from) phases.push({ kind, name, seconds: until - from }); };
  add("waiting", "waiting", t.arrived, Math.min(t.admitted ?? stop, stop));
  if (t.admitted !== null) add("prefill", "prefill", t.admitted, Math.min(t.first_token ?? stop, stop));
  if (t.first_token !== null) add("decode", "decode", t.first_token, stop);
  if (t.cancelled !== null) add("cancel", "stopping", t.cancelled, entry.cancel_latency_ms === null ? end : t.cancelled + entry.cancel_latency_ms / 1000);
  return phases;
}

const SOURCES = { past: "earlier answers", prediction: "the prediction", ngram: "prompt and answer", model: "the draft model", heads: "the model's heads" };

// The tokens that were drafted, and from what; null if none were.
export function draftsOf({ drafts = [] }) {
  const sum = (name) => drafts.reduce((total, one) => total + one[name], 0);
  if (sum("drafted") === 0) return null;
  const sources = drafts.map((one) => `${SOURCES[one.source] ?? one.source} ${one.accepted} of ${one.drafted}`);
  return { accepted: sum("accepted"), drafted: sum("drafted"), sources: sources.join(", ") };
}

// [{after, text, link}]: seconds after its arrival, the event, and the request that caused it.
export function storyOf(entry) {
  const { t } = entry;
  const story = [];
  const add = (at, text, link = null) => { if (at !== null) story.push({ at, after: at - t.arrived, text, link }); };
  add(t.arrived, `arrived with ${plural(entry.prompt_tokens, "prompt token")}`);
  const where = entry.slots.length > 0 ? ` into slot ${entry.slots.join(", ")}` : "";
  add(t.admitted, `admitted${where}, ${plural(entry.cached_tokens, "token")} of its prompt in the cache`);
  add(t.first_token, "first token");
  add(t.cancelled, entry.superseded_by ? "superseded by" : REASONS[entry.cancel_reason] ?? entry.cancel_reason, entry.superseded_by);
  const drafts = draftsOf(entry);
  if (drafts !== null) add(t.ended, `${drafts.accepted} of ${plural(drafts.drafted, "drafted token")} were accepted`);
  add(t.ended, entry.status === "cancelled" ? `computation had stopped after ${milliseconds(entry.cancel_latency_ms)}` : why(entry));
  return story.sort((a, b) => a.at - b.at);
}
