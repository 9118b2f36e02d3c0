// A pane's requests, newest first, and their results.
import { milliseconds, plural, REASONS } from "../lib/format.js";
import { html } from "../lib/html.js";
import { latencyOf } from "./statistics.js";

const MAX_ROWS = 60;

export function RequestList({ pane }) {
  const rows = pane.requests.slice(-MAX_ROWS).reverse();
  return html`
    <div class="try-requests" role="region" aria-label=${`Requests ${pane.supersedes ? "with" : "without"} superseding`} tabindex="0">
      <table>
        <thead><tr><th scope="col">Typed</th><th scope="col">First text</th><th scope="col">Tokens</th><th scope="col">Result</th></tr></thead>
        <tbody>
          ${rows.map((request) => html`<${Row} key=${request.id} request=${request} />`)}
          ${rows.length === 0 && html`<tr><td colspan="4" class="dim">Each key becomes a request.</td></tr>`}
        </tbody>
      </table>
      ${pane.unsent > 0 && html`<p class="dim">${plural(pane.unsent, "key")} got no request: too many were waiting.</p>`}
    </div>`;
}

function Row({ request }) {
  const { badge, word, more } = fateOf(request);
  return html`
    <tr>
      <td class="mono try-typed" title=${request.id}>${request.after || "⏎"}</td>
      <td class="num">${milliseconds(latencyOf(request))}</td>
      <td class="num">${Math.max(request.tokens, request.entry?.completion_tokens ?? 0)}</td>
      <td><span class=${`badge ${badge}`}>${word}</span>${more && html` <span class="dim num">${more}</span>`}</td>
    </tr>`;
}

// Return a request's state, in words.
export function fateOf({ sentAt, firstAt, obsoleteAt, endedAt, ending, entry }) {
  const forNobody = obsoleteAt !== null;
  if (endedAt === null) {
    if (sentAt === null) return { badge: "waiting", word: "waiting", more: forNobody ? "obsolete" : "" };
    return { badge: firstAt === null ? "prefill" : "decode", word: firstAt === null ? "asked" : "answering", more: forNobody ? "for nobody" : "" };
  }
  switch (ending.outcome) {
    case "finished": return { badge: "finished", word: "finished", more: forNobody ? "for nobody" : "" };
    case "unsent": return { badge: "waiting", word: "never sent", more: "" };
    case "left": return { badge: "cancelled", word: "hung up", more: stoppedAfter(entry) };
    case "cancelled": return { badge: "cancelled", word: REASONS[ending.code] ?? ending.code, more: stoppedAfter(entry) };
    default: return { badge: "error", word: "failed", more: ending.problem };
  }
}

const stoppedAfter = (entry) =>
  typeof entry?.cancel_latency_ms === "number" ? `compute stopped after ${milliseconds(entry.cancel_latency_ms)}` : "";
