// The share of the model's context that a conversation takes, by the answer that is being written, else by the usage of
// the last one.
import { plural } from "../lib/format.js";
import { html } from "../lib/html.js";
import { NO_DRAFT } from "./draft.js";
import { useObservable } from "../lib/observable.js";
import { branch } from "./conversation.js";
import { facts } from "./facts.js";

const NEARLY = 0.8; // share of the context from which a conversation is nearly too long

// Return {used, size, isNearlyFull} of the messages that are shown; null if nothing is counted yet, or the size is not
// known.
export function contextOf(messages, size, draft = null) {
  const usage = messages.findLast((message) => message.usage)?.usage;
  const used = writtenOf(draft) ?? (usage ? usage.prompt_tokens + usage.completion_tokens : null);
  if (used === null || !(size > 0)) return null;
  return { used, size, isNearlyFull: used >= NEARLY * size };
}

function writtenOf(draft) {
  const { timings = null, progress = null } = draft ?? {};
  const prompt = progress?.total ?? (timings === null ? null : timings.cache_n + timings.prompt_n);
  return prompt === null ? null : prompt + (timings?.predicted_n ?? 0);
}

export function ContextMeter({ conversation, answering }) {
  const known = useObservable(facts);
  const draft = useObservable(answering?.draft ?? NO_DRAFT);
  const found = contextOf(branch(conversation), known?.nCtx, draft);
  if (found === null) return null;
  const { used, size, isNearlyFull } = found;
  const title = `The conversation takes ${plural(used, "token")} of the context's ${size.toLocaleString("en")}`;
  return html`
    <span class=${`context num ${isNearlyFull ? "full" : ""}`} title=${title} role="img" aria-label=${title}>
      <span class="context-bar" aria-hidden="true"><i style=${{ width: `${Math.min(100, (100 * used) / size)}%` }}></i></span>
      <span aria-hidden="true">${used.toLocaleString("en")} / ${size.toLocaleString("en")}</span>
    </span>`;
}
