// The time from a cancel until the computation had stopped.
import { count, milliseconds, plural } from "../lib/format.js";
import { buckets, quantile } from "../lib/histogram.js";
import { html } from "../lib/html.js";
import { useModel } from "./use_model.js";

const name = ({ from, to }) => (to === Infinity ? `over ${label(from)}` : label(to));
const label = (ms) => (ms >= 1000 ? `${ms / 1000} s` : `${ms}`);

export function Histogram({ model, of }) {
  useModel(model, 1000);
  const values = model.latencies.map((one) => one.ms);
  const found = buckets(values);
  const most = Math.max(1, ...found.map((one) => one.n));
  const p50 = quantile(values, 0.5), p99 = quantile(values, 0.99);
  return html`
    <section class="card histogram-card" aria-labelledby="latency-title">
      <div class="row"><h2 id="latency-title" class="grow">Cancel latency${of}</h2><span class="dim small">last 5 minutes</span></div>
      <p class="dim small">From the cancel until its computation had stopped and its slot was free.</p>
      ${values.length === 0 ? html`<p class="nothing">No cancel in the last minutes. Cancel a request, or let its client leave.</p>` : html`
        <dl class="engine-numbers num">
          <div><dt>p50</dt><dd>${milliseconds(p50)}</dd></div>
          <div><dt>p99</dt><dd>${milliseconds(p99)}</dd></div>
          <div><dt>longest</dt><dd>${milliseconds(Math.max(...values))}</dd></div>
          <div><dt>cancels</dt><dd>${count(values.length)}</dd></div>
        </dl>
        <div class="histogram" role="img" aria-label=${found.filter((one) => one.n > 0).map((one) => `up to ${milliseconds(one.to)}: ${plural(one.n, "cancel")}`).join("; ")}>
          ${found.map((one) => html`
            <div class="bucket" key=${one.to} title=${`${milliseconds(one.from)} to ${milliseconds(one.to)}: ${plural(one.n, "cancel")}`}>
              <span class="n num">${one.n || ""}</span>
              <i style=${{ height: one.n === 0 ? "0" : `max(3px, ${(78 * one.n) / most}%)` }}></i>
              <span class="bound num">${name(one)}</span>
            </div>`)}
        </div>
        <p class="dim small unit">ms, upper bounds</p>`}
    </section>`;
}
