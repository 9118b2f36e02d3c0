// The share of the model's context that a conversation takes.
import { plural } from "../lib/format.js";
import { html } from "../lib/html.js";
import { NO_DRAFT } from "./draft.js";
import { useObservable } from "../lib/observable.js";
import { contextOf } from "./context_use.js";
import { branch } from "./conversation.js";
import { facts } from "./facts.js";

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
