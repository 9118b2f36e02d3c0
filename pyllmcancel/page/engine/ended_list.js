// Requests that have ended, newest first, with reason and speed. The list stands still while pointer or focus are in
// it.
import { count, duration, hasLatency, howFast, milliseconds, plural, state, timeOfDay, why } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { useAttention } from "./attention.js";
import { endingTitle, Group, Name } from "./request_list.js";
import { useModel } from "./use_model.js";

const FIRST = 12;
const KINDS = {
  all: ["All", () => true],
  cancelled: ["Cancelled", (entry) => entry.status === "cancelled"],
  failed: ["Failed or lost", (entry) => entry.status === "error" || entry.status === "lost"],
};

export function EndedList({ model }) {
  useModel(model, 500);
  const [kind, setKind] = useState("all");
  const [most, setMost] = useState(FIRST);
  const shown = useRef({ last: Infinity, kind: null, most: 0 }).current;
  const { props, quiet } = useAttention();
  const { ended } = model;
  const all = ended.filter(KINDS[kind][1]);
  const newest = ended.at(-1) ?? null;
  // Requests that have ended since pointer or focus came are held back, and counted.
  if (quiet() || shown.kind !== kind || shown.most !== most || !ended.includes(shown.last)) Object.assign(shown, { last: newest, kind, most });
  const end = shown.last === null ? 0 : ended.indexOf(shown.last) + 1;
  const settled = ended.slice(0, end).filter(KINDS[kind][1]);
  const newer = all.length - settled.length;
  const rows = settled.slice(-most).reverse();
  return html`
    <section class="card" aria-labelledby="ended-title">
      <div class="row">
        <h2 id="ended-title" class="grow">Ended</h2>
        ${newer > 0 && html`<span class="dim num">${newer} newer, shown when you leave the list</span>`}
        <label class="row"><span class="hidden-text">which</span>
          <select value=${kind} onChange=${(event) => setKind(event.target.value)}>${Object.entries(KINDS).map(([id, [name]]) => html`<option key=${id} value=${id}>${name}</option>`)}</select></label>
      </div>
      ${rows.length === 0 ? html`<p class="nothing">${ended.length === 0 ? "Nothing has ended yet." : "No such request has ended."}</p>` : html`
        <div class="list-head over dim" aria-hidden="true"><span>ended</span><span>request</span><span>session, key</span><span>state</span><span>stopped after</span><span>tokens</span></div>
        <ul class="rows over" ...${props}>${rows.map((entry) => html`<${Row} key=${entry.uid} entry=${entry} />`)}</ul>
        ${settled.length > most && html`<button class="quiet more" onClick=${() => setMost(most + 50)}>Show more (${count(settled.length - most)})</button>`}
        ${most > FIRST && html`<button class="quiet more" onClick=${() => setMost(FIRST)}>Show fewer</button>`}`}
    </section>`;
}

const Row = ({ entry }) => html`
  <li data-uid=${entry.uid}>
    <span class="cell when num dim">${entry.t.ended === null ? "" : timeOfDay(entry.t.ended)}</span>
    <span class="cell id"><${Name} entry=${entry} most=${16} /></span>
    <span class="cell group"><${Group} entry=${entry} /></span>
    <span class="cell state"><span class=${`badge ${state(entry)}`}>${state(entry)}</span><span class="why" title=${endingTitle(entry)}>${why(entry)}</span></span>
    <span class="cell latency num" title=${howFast(entry)}>${hasLatency(entry) && html`<span class="hidden-text">${howFast(entry).split(" after ")[0]} after </span>${milliseconds(entry.cancel_latency_ms)}`}</span>
    <span class="cell tokens num">${plural(entry.completion_tokens, "token")} <span class="dim">in ${duration(entry.t.ended === null ? null : entry.t.ended - entry.t.arrived)}</span></span>
  </li>`;
