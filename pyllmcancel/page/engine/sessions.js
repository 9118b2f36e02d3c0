// The queue, and sessions as trees: families, their supersede keys, and their live requests.
import { count, duration, plural, shorten, state } from "../lib/format.js";
import { html, useRef } from "../lib/html.js";
import { Places } from "../lib/places.js";
import { useAttention } from "./attention.js";
import { CancelSession } from "./cancel_button.js";
import { Key, Name, runningFirst } from "./request_list.js";
import { useModel } from "./use_model.js";

const MAX_FAMILIES = 20, MAX_REQUESTS = 5, MAX_WAITING = 5, DEEPEST = 8;

export function Sessions({ model, of }) {
  useModel(model, 500);
  return html`
    <section class="card" aria-labelledby="sessions-title">
      <h2 id="sessions-title">Queue and sessions${of}</h2>
      <${Queue} model=${model} />
      <${Trees} model=${model} />
    </section>`;
}

function Queue({ model }) {
  const waiting = model.waiting();
  const now = model.serverNow();
  return html`
    <h3 class="tree-title">Queue <span class="dim num">${count(waiting.length)}</span></h3>
    ${waiting.length === 0 ? html`<p class="dim small">No request is waiting for a slot.</p>` : html`
      <ol class="tree queue">
        ${waiting.slice(0, MAX_WAITING).map((entry) => html`
          <li key=${entry.uid} class="row"><${Name} entry=${entry} most=${22} />
            ${entry.supersede !== null && html`<${Key} name=${entry.supersede} />`}
            <span class="dim num">${duration(Math.max(0, now - entry.t.arrived))}</span></li>`)}
      </ol>
      ${waiting.length > MAX_WAITING && html`<p class="dim small num">and ${plural(waiting.length - MAX_WAITING, "more", "more")}</p>`}`}`;
}

// Families with live requests come first when they appear, and then keep their places.
function Trees({ model }) {
  const places = useRef(new Places()).current;
  const { props, held, quiet } = useAttention();
  const { families } = model;
  const roots = families.roots();
  const live = roots.filter((root) => families.liveBelow(root) > 0);
  const shown = places.update(live, performance.now() / 1000, { held: (root) => held(root.uid), quiet: quiet(), most: MAX_FAMILIES });
  const idle = roots.filter((root) => !shown.includes(root));
  const alone = [...model.live.values()].filter((entry) => entry.session === null);
  return html`
    <h3 class="tree-title">Sessions <span class="dim num">${count(families.sessions.size)}</span></h3>
    <div ...${props}>
      <ul class="tree">
        ${shown.map((root) => html`<${Branch} key=${root.key} model=${model} session=${root} depth=${0} />`)}
        ${alone.length > 0 && html`<li key="none"><div class="session-line"><span class="dim">without a session</span><span class="dim num">${plural(alone.length, "live", "live")}</span></div><${Requests} model=${model} entries=${runningFirst(alone)} /></li>`}
      </ul>
    </div>
    ${shown.length === 0 && alone.length === 0 && html`<p class="dim small">No session has live requests. A client names its session by the header <code>X-Session-Id</code>.</p>`}
    ${idle.length > 0 && html`<details class="idle-families"><summary>${plural(idle.length, "idle family", "idle families")}</summary>
      <ul class="tree">${idle.slice(-MAX_FAMILIES).reverse().map((root) => html`<${Branch} key=${root.key} model=${model} session=${root} depth=${0} />`)}</ul></details>`}`;
}

function Branch({ model, session, depth }) {
  const { families } = model;
  const live = families.liveBelow(session);
  const children = depth < DEEPEST ? families.childrenOf(session) : [];
  return html`
    <li class="session" data-uid=${session.uid}>
      <div class="session-line">
        <span class="ellipsis session-name" title=${session.id}><span class="hidden-text">session </span><bdi>${shorten(session.id, 44)}</bdi></span>
        <span class="dim num">${live > 0 ? `${live} live, ` : ""}${plural(session.nRequests, "request")}</span>
        <${CancelSession} session=${session} live=${live} />
      </div>
      <${Requests} model=${model} entries=${runningFirst(session.live)} />
      ${children.length > 0 && html`<ul class="tree">${children.slice(0, MAX_FAMILIES).map((child) => html`<${Branch} key=${child.key} model=${model} session=${child} depth=${depth + 1} />`)}</ul>`}
    </li>`;
}

const Requests = ({ model, entries }) => entries.length > 0 && html`
  <ul class="tree leaves">
    ${entries.slice(0, MAX_REQUESTS).map((entry) => html`
      <li key=${entry.uid} class="row"><${Name} entry=${entry} most=${22} /><span class=${`badge ${state(entry)}`}>${state(entry)}</span>
        ${entry.supersede !== null && html`<${Key} name=${entry.supersede} />${superseded(model, entry)}`}</li>`)}
    ${entries.length > MAX_REQUESTS && html`<li class="dim num">and ${entries.length - MAX_REQUESTS} more</li>`}
  </ul>`;

function superseded(model, entry) {
  const known = model.families.keyOf(entry);
  return known?.newest === entry && known.superseded > 0 ? html`<span class="dim num small">newest; ${known.superseded} superseded</span>` : null;
}
