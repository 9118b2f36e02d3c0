// Details of the block under the pointer, or of the one chosen by the arrow keys, which screen readers get, too.
import { ending, count, duration, milliseconds, plural, shorten, timeOfDay, why } from "../lib/format.js";
import { html, useLayoutEffect, useRef } from "../lib/html.js";

const KINDS = { prefill: "prefill", decode: "decode", aborted: "aborted step", waiting: "waiting" };

export function Details({ pointed, canOpen }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    if (pointed === null || box.current === null) return;
    const { offsetWidth: w, parentElement } = box.current;
    const left = Math.max(0, Math.min(pointed.x + 14, parentElement.clientWidth - w));
    box.current.style.left = `${left}px`;
    box.current.style.top = `${pointed.y + 16}px`; // below the point, because the buttons are above
  }, [pointed]);
  const lines = pointed === null ? [] : linesOf(pointed);
  return html`
    ${pointed !== null && html`
      <div class="timeline-details" ref=${box} aria-hidden="true">
        <strong><bdi>${shorten(pointed.entry?.id ?? "an unknown request", 40)}</bdi></strong>
        ${lines.map((line) => html`<span>${line}</span>`)}
        ${canOpen && pointed.entry !== null && html`<span class="dim">${pointed.byKey ? "Enter" : "Click"} to open it</span>`}
      </div>`}
    <p class="hidden-text" role="status">${pointed?.byKey ? `${pointed.row.key}: ${pointed.entry?.id ?? ""} ${lines.join(", ")}` : ""}</p>`;
}

function linesOf({ entry, block, mark }) {
  if (mark !== undefined) {
    const after = mark.until === null ? "computation has not stopped yet" : `computation stopped after ${milliseconds(1000 * (mark.until - mark.at))}`;
    return [`cancel at ${timeOfDay(mark.at)}: ${shorten(why(entry), 48)}`, after];
  }
  if (block.kind === "waiting") return [block.until === Infinity ? "waiting" : `waited ${duration(block.until - block.at)}`, `since ${timeOfDay(block.at)}`];
  const status = block.kind === "aborted" && block.status !== "aborted" ? `step that failed (${block.status.replace("_", " ")})` : KINDS[block.kind];
  const steps = block.steps > 0 ? [plural(block.steps, "step")] : []; // those before the page was opened are not known
  const lines = [`${status}: ${[plural(block.tokens, "token"), ...steps, duration(block.until - block.at)].join(", ")}`];
  if (block.drafted > 0) lines.push(`${count(block.accepted)} of ${plural(block.drafted, "drafted token")} accepted`);
  if (entry?.session) lines.push(`session ${shorten(entry.session, 40)}`);
  if (entry !== null && !entry.live) lines.push(shorten(ending(entry), 72));
  else if (entry !== null) lines.push(`${plural(entry.completion_tokens, "token")} so far`);
  return lines;
}
