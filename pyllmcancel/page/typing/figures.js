// A pane's figures, and a bar for each key.
import { count, milliseconds, plural } from "../lib/format.js";
import { html } from "../lib/html.js";
import { figuresOf, latencyOf } from "./statistics.js";

export function Figures({ pane }) {
  const { last, median, open, wasted, computed } = figuresOf(pane.requests);
  const share = computed === 0 ? 0 : Math.round(100 * wasted / computed);
  return html`
    <dl class="try-figures">
      <${Figure} name="Key to first grey text" value=${milliseconds(last)} more=${`median ${milliseconds(median)}`}
        title="The newest answered key, and all answered keys." />
      <${Figure} name="Open requests" value=${count(open)} more=${`${count(pane.mostOpen)} at most`}
        title="Sent to the server or waiting to be sent." />
      <${Figure} name="Tokens for nobody" value=${count(wasted)} more=${`${share} % of all computed`}
        title="Tokens computed after a newer key had made their request obsolete, counted from when the server could know that." bad=${share >= 50} />
    </dl>`;
}

const Figure = ({ name, value, more, title, bad }) => html`
  <div title=${title}>
    <dt>${name}</dt>
    <dd class=${`num big${bad ? " bad" : ""}`}>${value}</dd>
    <dd class="num dim">${more}</dd>
  </div>`;

const MAX_BARS = 60;
const KINDS = { shown: "in time", late: "after the next key", none: "never", asked: "not yet" };

// `scale`: the milliseconds of the highest bar, the same for both panes.
export function Bars({ pane, scale, now }) {
  const requests = pane.requests.slice(-MAX_BARS);
  const late = requests.filter((request) => kindOf(request) === "late").length;
  const told = requests.length === 0 ? "No key yet" : `A bar for each of ${plural(requests.length, "key")}; ${late} answered too late to be shown`;
  return html`
    <figure class="try-bars">
      <div class="try-plot" role="img" aria-label=${told}>
        ${requests.map((request) => html`<${Bar} key=${request.id} request=${request} scale=${scale} now=${now} />`)}
        <span class="try-scale num dim" aria-hidden="true">${milliseconds(scale)}</span>
      </div>
      <figcaption class="dim">
        <span>Key to first text:</span>
        ${Object.entries(KINDS).map(([kind, word]) => html`<span class="try-legend"><i class=${`try-bar ${kind}`}></i>${word}</span>`)}
      </figcaption>
    </figure>`;
}

function Bar({ request, scale, now }) {
  const kind = kindOf(request);
  const length = latencyOf(request) ?? (kind === "asked" ? now - request.keyAt : 0);
  return html`<span class=${`try-bar ${kind}`} style=${{ height: `${Math.min(100, 100 * length / scale)}%` }}></span>`;
}

// shown: in time; late: after a newer key; asked: no text yet; none: ended without text
export function kindOf(request) {
  if (request.firstAt !== null) return request.obsoleteAt !== null && request.obsoleteAt < request.firstAt ? "late" : "shown";
  return request.endedAt === null ? "asked" : "none";
}
