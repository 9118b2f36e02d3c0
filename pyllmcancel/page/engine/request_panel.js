// One request in detail: its waiting and computing, who cancelled it, and its texts if the server exposes them.
import { call } from "../lib/api.js";
import { count, duration, ending, plural, shorten, state, timeOfDay } from "../lib/format.js";
import { Dialog } from "../lib/dialog.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { CancelRequest } from "./cancel_button.js";
import { Key, linkTo } from "./request_list.js";
import { draftsOf, phasesOf, storyOf } from "./request_story.js";
import { Timeline } from "./timeline.js";
import { useModel } from "./use_model.js";

export function RequestPanel({ fleet, id, onClose }) {
  useModel(fleet);
  const entry = useEntry(fleet, id);
  return html`
    <${Dialog} class="panel" aria-labelledby="panel-title" onClose=${onClose}>
      <div class="panel-body">
        <div class="row panel-head">
          <h2 id="panel-title" class="grow mono" title=${id}><bdi>${id}</bdi></h2>
          <button class="quiet" onClick=${onClose} aria-label="Close" title="Close (Esc)">✕</button>
        </div>
        ${entry === null && html`<p class="nothing">This request is unknown, or is no longer remembered. The server remembers only the last ended requests.</p>`}
        ${entry === undefined && html`<p class="dim" role="status">Looking for it.</p>`}
        ${entry && html`<${Opened} model=${fleet.modelOf(entry.replica)} entry=${entry} />`}
      </div>
    </${Dialog}>`;
}

// The model's entry, else the server's, which may remember more; null: neither has one.
function useEntry(fleet, id) {
  const held = useRef(null); // keeps the opened request even if another one with its id comes
  const [fetched, setFetched] = useState(undefined);
  if (held.current?.id !== id) held.current = fleet.find(id) ?? null;
  const isKnown = held.current !== null;
  const isReady = fleet.server !== null || fleet.served.value !== null;
  useEffect(() => {
    if (isKnown || !isReady) return undefined;
    const controller = new AbortController();
    call(`v1/requests/${encodeURIComponent(id)}`, { signal: controller.signal }).then(
      (data) => setFetched({ replica: "", ...data, uid: 0, live: false, lost: null, wasted: 0, max_tokens: null, t: timesOf(data) }),
      () => setFetched(null),
    );
    return () => controller.abort();
  }, [id, isKnown, isReady]);
  return held.current ?? fetched;
}

const timesOf = ({ created, seconds }) => ({ arrived: created, admitted: null, first_token: null, cancelled: null, ended: created + seconds });

function Opened({ model, entry }) {
  const now = model.serverNow() ?? entry.t.ended;
  const mine = useCallback((one) => one === entry, [entry]);
  const isOver = entry.t.ended !== null && !entry.live;
  const seen = entry.uid !== 0 && (!isOver || entry.t.ended >= model.since?.at);
  const range = useMemo(() => (isOver ? around(entry) : null), [entry, isOver]);
  return html`
    <div class="row">
      <span class=${`badge ${state(entry)}`}>${state(entry)}</span>
      <span class="grow">${entry.live ? "" : ending(entry)}</span>
      ${entry.live && html`<${CancelRequest} entry=${entry} />`}
    </div>
    <${Phases} phases=${phasesOf(entry, now)} />
    ${seen && html`<${Timeline} key=${`${entry.uid} ${isOver}`} model=${model} filter=${mine} compact range=${range} span=${10} label=${`Timeline of request ${entry.id}`} />`}
    <${Story} entry=${entry} />
    <${Facts} model=${model} entry=${entry} />
    <${Text} title="End of the prompt" text=${entry.prompt} />
    <${Text} title="Beginning of the answer" text=${entry.output} />`;
}

function around({ t }) {
  const spare = Math.max(0.02, (t.ended - t.arrived) * 0.08);
  return { at: t.arrived - spare, until: t.ended + spare };
}

const Phases = ({ phases }) => html`
  <div class="phases" aria-hidden="true">${phases.map(({ kind, seconds }) => html`<i key=${kind} class=${kind} style=${{ flexGrow: 1000 * Math.max(seconds, 1e-4) }}></i>`)}</div>
  <dl class="engine-numbers num">
    ${phases.map(({ kind, name, seconds }) => html`<div key=${kind}><dt><span class=${`swatch ${kind}`} aria-hidden="true"></span>${name}</dt><dd>${duration(seconds)}</dd></div>`)}
  </dl>`;

const Story = ({ entry }) => html`
  <h3>What happened</h3>
  <ol class="story">
    ${storyOf(entry).map(({ after, text, link }, i) => html`
      <li key=${i}><span class="num dim">${after === null ? "" : `+${duration(after)}`}</span><span>${text}${link && html` <a class="mono" href=${linkTo(link)} title=${link}>${shorten(link, 36)}</a>`}</span></li>`)}
  </ol>`;

function Facts({ model, entry }) {
  const drafts = draftsOf(entry);
  const facts = [
    ["Prompt", `${plural(entry.prompt_tokens, "token")}, ${count(entry.cached_tokens)} from the cache, ${count(entry.prompt_tokens_done)} done`],
    ["Answer", `${plural(entry.completion_tokens, "token")}${entry.max_tokens ? ` of ${count(entry.max_tokens)} at most` : ""}${entry.n > 1 ? `, ${entry.n} choices` : ""}`],
    drafts !== null && ["Drafts", `${count(drafts.accepted)} of ${plural(drafts.drafted, "token")} accepted: ${drafts.sources}`],
    entry.wasted > 0 && ["Wasted", `${plural(entry.wasted, "token")} of aborted steps`],
    entry.session !== null && ["Session", html`<bdi>${entry.session}</bdi>`],
    entry.parent_session !== null && ["Parent session", html`<bdi>${entry.parent_session}</bdi>`],
    entry.supersede !== null && ["Supersede key", html`<${Key} name=${entry.supersede} />`],
    model.server?.all_owners && entry.owner !== "" && ["Owner", entry.owner],
    entry.priority !== 0 && ["Priority", entry.priority],
    ["Slots", entry.slots.length === 0 ? "none" : entry.slots.join(", ")],
    entry.replica !== "" && ["Replica", html`<bdi>${entry.replica}</bdi>`],
    ["Arrived", timeOfDay(entry.t.arrived)],
    entry.error && ["Error", entry.error],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

const Text = ({ title, text }) => (text ? html`<h3>${title}</h3><pre class="text" tabindex="0">${text}</pre>` : null);
