// Slots as lanes on a moving timeline.
//
//   html`<${Timeline} model=${model} label="What this page's requests do" filter=${(entry) => mine.has(entry.id)} compact onOpen=${(entry) => …} />`
//
// model    the page's Model.
// groups   instead of it: {name, model} of each Model whose lanes are drawn, one below the other.
// filter   (entry) => boolean: only what belongs to these requests is drawn; null: everything, blocks of unknown requests too.
// compact  low lanes without texts, no legend, and with a filter only the lanes that its requests have used.
// label    its name, for screen readers.
// span     seconds that it shows at first (30).
// range    {at, until}: shows this time and stands still, instead of following.
// onOpen   (entry) => …: a block was clicked, or Enter pressed on it; null: blocks cannot be opened.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Details } from "./timeline_details.js";
import { Legend } from "./timeline_legend.js";
import { TimelineView } from "./timeline_view.js";

const KEYS = "Left and right go from block to block, up and down from lane to lane, Enter opens the request, "
  + "Space pauses, plus and minus zoom, Shift with left and right moves in time, Escape follows again.";

export function Timeline({ model, groups = [{ name: "", model }], filter = null, compact = false, label = "Timeline of the slots", span = 30, range = null, onOpen = null }) {
  const canvas = useRef(null);
  const view = useRef(null);
  const [shown, setShown] = useState({ span, paused: range !== null });
  const [pointed, setPointed] = useState(null); // {entry, block or mark, row, x, y, byKey}

  // One view for the canvas's life; its properties may change.
  useEffect(() => {
    const made = new TimelineView(canvas.current, groups, { span, range, onChange: setShown, onPoint: setPointed });
    view.current = made;
    return () => made.close();
  }, [model]);
  useEffect(() => view.current.show({ groups, filter, compact, onOpen }));

  return html`
    <div class=${`timeline${compact ? " compact" : ""}`}>
      <div class="row timeline-bar">
        ${!compact && html`<${Legend} />`}
        <div class="row timeline-buttons" role="group" aria-label=${`${label}: time`}>
          <button onClick=${() => view.current.zoom(1)} aria-label="Show a longer time" title="Show a longer time (−)">−</button>
          <span class="num span" role="status">${shown.span < 1 ? `${Math.round(1000 * shown.span)} ms` : `${Math.round(10 * shown.span) / 10} s`}</span>
          <button onClick=${() => view.current.zoom(-1)} aria-label="Show a shorter time" title="Show a shorter time (+)">+</button>
          <button class=${shown.paused ? "primary" : ""} aria-pressed=${shown.paused} onClick=${() => view.current.togglePause()} title="Space">
            ${shown.paused ? "Follow" : "Pause"}</button>
        </div>
      </div>
      <div class="timeline-lanes">
        <canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="timeline" aria-label=${`${label}. ${KEYS}`}></canvas>
        <${Details} pointed=${pointed} canOpen=${onOpen !== null} />
      </div>
    </div>`;
}
