// Live requests, each with a button to cancel it. A row keeps its place while its request lives, and for a while after:
// a button that a person is about to press must not move.
import { call } from "../lib/api.js";
import { ending, count, duration, howFast, plural, shorten, state, why } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Places } from "../lib/places.js";
import { useAttention } from "./attention.js";
import { CancelRequest } from "./cancel_button.js";
import { Empty } from "./empty.js";
import { useModel } from "./use_model.js";

const FIRST = matchMedia("(max-width: 560px)").matches ? 6 : 12, MAX_ROWS = 200; // rows
const LOOK_MS = 2000;

export const linkTo = (id) => `#engine/${encodeURIComponent(id)}`;
export const Name = ({ entry, most = 20 }) => html`<a class="mono name" href=${linkTo(entry.id)} title=${entry.id}><bdi>${shorten(entry.id, most)}</bdi></a>`;

// In case there is not a place for each.
export const runningFirst = (entries) => [...entries].sort((a, b) => (a.t.admitted === null) - (b.t.admitted === null));

export function RequestList({ model }) {
  useModel(model);
  useAhead(model);
  const places = useRef(new Places()).current;
  const [most, setMost] = useState(FIRST);
  const { props, held, quiet } = useAttention();
  const rows = places.update(runningFirst(model.live.values()), performance.now() / 1000, { held: (entry) => held(entry.uid), quiet: quiet(), most });
  const hidden = model.live.size - rows.filter((entry) => entry.live).length;
  return html`
    <section class="card" aria-labelledby="live-title">
      <div class="row"><h2 id="live-title" class="grow">Live requests</h2><span class="dim num">${count(model.live.size)}</span></div>
      ${rows.length === 0 ? html`<${Empty} model=${model} />` : html`
        <div class="list-head dim" aria-hidden="true"><span>request</span><span>session, key</span><span>state</span><span>tokens</span><span>age</span><span></span></div>
        <ul class="rows live" ...${props}>${rows.map((entry) => html`<${Row} key=${entry.uid} entry=${entry} now=${model.nowOf(entry)} />`)}</ul>`}
      ${hidden > 0 && html`<p class="row dim">and ${plural(hidden, "more", "more")}
        ${most < MAX_ROWS && html`<button class="quiet more" onClick=${() => setMost(MAX_ROWS)}>Show ${hidden > MAX_ROWS - most ? `${MAX_ROWS} of them` : "all"}</button>`}</p>`}
    </section>`;
}

// No event says what a waiting request waits for, so the server is asked.
function useAhead(model) {
  useEffect(() => {
    const look = async () => {
      const waiting = [...model.live.values()].filter((entry) => entry.t.admitted === null);
      if (waiting.length === 0) return;
      const { data } = await call("v1/requests?status=waiting").catch(() => ({ data: [] }));
      for (const entry of waiting) entry.ahead = data.find(({ id, owner }) => id === entry.id && owner === entry.owner);
    };
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [model]);
}

function Ahead({ entry: { ahead } }) {
  if (!ahead?.position) return null;
  const about = ahead.seconds_ahead === null ? "" : `, about ${duration(Math.round(ahead.seconds_ahead))}`;
  return html`<span class="why num">${count(ahead.position - 1)} ahead${about}</span>`;
}

function Row({ entry, now }) {
  const age = entry.live ? now - entry.t.arrived : (entry.t.ended ?? now) - entry.t.arrived;
  return html`
    <li data-uid=${entry.uid} class=${entry.live ? "" : "ended"}>
      <span class="cell id"><${Name} entry=${entry} /></span>
      <span class="cell group"><${Group} entry=${entry} /></span>
      <span class="cell state"><span class=${`badge ${state(entry)}`}>${state(entry)}</span>${entry.live ? html`<${Progress} entry=${entry} />` : html`<${Ending} entry=${entry} />`}</span>
      <span class="cell tokens num" title=${tokensTitle(entry)}><span class="hidden-text">tokens </span>${count(entry.completion_tokens)}${entry.max_tokens ? html`<span class="dim"> / ${count(entry.max_tokens)}</span>` : ""}</span>
      <span class="cell age num"><span class="hidden-text">age </span>${duration(Math.max(0, age))}</span>
      <span class="cell act"><${CancelRequest} entry=${entry} /></span>
    </li>`;
}

// The cancel latency has a line of its own, which is never cut, however long the reason is.
function Ending({ entry }) {
  const [, first, rest] = /^(compute|left the queue|)(.*)$/.exec(howFast(entry));
  return html`
    <span class="ending">
      <span class="why" title=${endingTitle(entry)}>${why(entry)}</span>${rest !== "" && html`<span class="latency num"><span class="hidden-text">, ${first}</span>${rest}</span>`}
    </span>`;
}

export const endingTitle = (entry) => (entry.superseded_by === null ? ending(entry) : `${ending(entry)} (${entry.superseded_by})`);

export function Group({ entry }) {
  if (entry.session === null && entry.supersede === null && entry.replica === "") return html`<span class="dim">–</span>`;
  return html`
    ${entry.replica !== "" && html`<${Replica} name=${entry.replica} />`}
    ${entry.session !== null && html`<span class="ellipsis" title=${`session ${entry.session}`}><span class="hidden-text">session </span><bdi>${shorten(entry.session, 40)}</bdi></span>`}
    ${entry.supersede !== null && html`<${Key} name=${entry.supersede} />`}`;
}

const Replica = ({ name }) => html`<span class="replica ellipsis" title=${`on replica ${name}`}><span class="hidden-text">on replica </span><bdi>${shorten(name, 24)}</bdi></span>`;

export const Key = ({ name }) => html`
  <span class="key mono ellipsis" title=${`supersede key ${name}: a newer request with it ends this one`}><span class="hidden-text">supersede key </span><bdi>${shorten(name, 30)}</bdi></span>`;

const tokensTitle = (entry) => `${count(entry.completion_tokens)} generated; prompt of ${count(entry.prompt_tokens)}, ${count(entry.cached_tokens)} of them from the cache`;

// The progress of the prompt or the answer.
function Progress({ entry }) {
  if (entry.t.admitted === null) return html`<${Ahead} entry=${entry} />`;
  const isPrompt = entry.phase !== "decode";
  const done = isPrompt ? entry.prompt_tokens_done : entry.completion_tokens;
  const all = isPrompt ? entry.prompt_tokens : entry.max_tokens;
  if (!all) return null;
  return html`<span class="meter" aria-hidden="true" title=${`${count(done)} of ${count(all)}`}><i class=${isPrompt ? "prefill" : "decode"} style=${{ width: `${Math.min(100, (100 * done) / all)}%` }}></i></span>`;
}
