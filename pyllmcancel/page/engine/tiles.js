// The engine's numbers at a glance.
import { count, duration, plural } from "../lib/format.js";
import { html } from "../lib/html.js";
import { robustTop } from "../lib/series.js";
import { useModel } from "./use_model.js";

const SHOWN = 60; // seconds of a sparkline

export function Tiles({ model }) {
  useModel(model, 500);
  const now = model.serverNow();
  if (now === null) return html`<div class="tiles" aria-hidden="true">${[0, 1, 2, 3, 4, 5].map((i) => html`<div key=${i} class="card tile"></div>`)}</div>`;
  return html`
    <div class="tiles">
      <${Speed} model=${model} now=${now} />
      <${Slots} model=${model} />
      <${Queue} model=${model} now=${now} />
      <${Cells} model=${model} />
      <${Prefixes} stats=${model.stats} />
      <${Waste} model=${model} />
    </div>`;
}

const Tile = ({ name, value, unit = "", note, title, children }) => html`
  <section class="card tile" aria-label=${name} title=${title}>
    <h3 class="dim">${name}</h3>
    <p class="value num">${value}${unit && html` <small>${unit}</small>`}</p>
    ${children}
    <p class="note dim num">${note}</p>
  </section>`;

function Speed({ model, now }) {
  const values = model.series.last(now, "decode", SHOWN);
  const prefill = model.series.rate(now, "prefill");
  const title = `Decoded tokens a second, mean of three seconds; at most ${count(Math.max(...values))} in the last minute`;
  return html`
    <${Tile} name="Tokens" value=${count(model.series.rate(now, "decode"))} unit="a second" title=${title} note=${`and ${count(prefill)} of prompts`}>
      <${Sparkline} values=${values} kind="decode" />
    </${Tile}>`;
}

function Slots({ model }) {
  const { slots } = model.server.capacity;
  const running = model.running(), used = model.slotsUsed();
  const decoding = running.filter((entry) => entry.phase === "decode").length;
  return html`
    <${Tile} name="Slots" value=${count(used)} unit=${`of ${slots}`} note=${`${decoding} decode, ${running.length - decoding} prefill`}>
      ${slots <= 32 ? html`<div class="pips" aria-hidden="true">${Array.from({ length: slots }, (_, i) => html`<i key=${i} class=${i < used ? "used" : ""}></i>`)}</div>`
        : html`<${Bar} parts=${[["used", used], ["free", slots - used]]} />`}
    </${Tile}>`;
}

function Queue({ model, now }) {
  const waiting = model.waiting();
  const n = model.stats?.waiting ?? waiting.length;
  const oldest = waiting.length === 0 ? "none" : `the oldest for ${duration(Math.max(0, now - waiting[0].t.arrived))}`;
  return html`
    <${Tile} name="Queue" value=${count(Math.max(n, waiting.length))} unit="waiting" note=${oldest}>
      <${Sparkline} values=${model.series.lastKnown(now, "waiting", SHOWN)} kind="waiting" least=${4} />
    </${Tile}>`;
}

const NOT_SEEN = "shown with an administrator's key";

function Cells({ model }) {
  const { cells } = model.server.capacity;
  if (model.stats === null) return html`<${Tile} name="Cache cells" value=${count(cells)} note=${NOT_SEEN} />`;
  const { cells_used: used, cells_idle: idle } = model.stats;
  const free = Math.max(0, cells - used - idle);
  return html`
    <${Tile} name="Cells in use" value=${count(used)} unit=${`of ${count(cells)}`} note=${`${count(idle)} idle, ${count(free)} free`}
      title="In use: cells of live requests. Idle: prefixes kept for requests that begin alike, and evicted when the room is needed.">
      <${Bar} parts=${[["used", used], ["idle", idle], ["free", free]]} />
    </${Tile}>`;
}

function Prefixes({ stats }) {
  if (stats === null) return html`<${Tile} name="Prefix hits" value="–" note=${NOT_SEEN} />`;
  const { reused_tokens: reused, prompt_tokens: computed } = stats;
  const all = reused + computed;
  const share = all > 0 ? `${Math.round((100 * reused) / all)} %` : "–";
  return html`
    <${Tile} name="Prefix hits" title="Tokens of prompts that were in the cache already" value=${share} unit="of prompts" note=${`${count(reused)} of ${count(all)}`}>
      <${Bar} parts=${[["hits", reused], ["free", computed]]} />
    </${Tile}>`;
}

function Waste({ model }) {
  const { stats } = model;
  if (stats === null) return html`<${Tile} name="Saved by cancels" value="–" note=${NOT_SEEN} />`;
  const cancels = Object.values(stats.cancels).reduce((sum, n) => sum + n, 0);
  const reasons = Object.entries(stats.cancels).map(([reason, n]) => `${reason} ${n}`).join(", ");
  const { saved_tokens: saved, wasted_tokens: wasted } = stats;
  return html`
    <${Tile} name="Saved by cancels" value=${count(saved)} unit="tokens" title=${`Tokens that cancelled requests would have computed up to their limits; an answer without a limit counts as long as the median of those that have ended. Wasted: computed in ${plural(stats.aborted_steps, "aborted step")}. ${reasons}`}
      note=${`${plural(cancels, "cancel")}; ${count(wasted)} wasted`}>
      <${Bar} parts=${[["saved", saved], ["wasted", wasted]]} />
    </${Tile}>`;
}

// Shares of a whole; the text beside it has the numbers.
function Bar({ parts }) {
  const whole = parts.reduce((sum, [, n]) => sum + n, 0) || 1;
  return html`
    <div class="shares" aria-hidden="true">
      ${parts.map(([kind, n]) => n > 0 && html`<i key=${kind} class=${kind} style=${{ width: `${(100 * n) / whole}%` }} title=${`${kind}: ${count(n)}`}></i>`)}
    </div>`;
}

// Values far above the rest are cut and marked, so that they do not flatten the rest.
function Sparkline({ values, kind, least = 1 }) {
  const top = robustTop(values, least);
  const x = (i) => (100 * i) / (values.length - 1);
  const y = (value) => 28 - (26 * Math.min(value, top)) / top;
  const line = values.map((value, i) => `${x(i).toFixed(2)},${y(value).toFixed(2)}`).join(" ");
  const cut = values.flatMap((value, i) => (value > top * 1.001 ? [x(i)] : []));
  return html`
    <svg class=${`sparkline ${kind}`} viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">
      <polygon points=${`0,28 ${line} 100,28`} />
      <polyline points=${line} />
      ${cut.map((at) => html`<path key=${at} class="cut" d=${`M${at - 0.8},3 L${at},0 L${at + 0.8},3`} />`)}
    </svg>`;
}
