// All models of a server that has several: their states and loads. A loaded one is chosen here, and its figures are
// shown below.
import { bytes, count, duration, plural, shorten } from "../lib/format.js";
import { html } from "../lib/html.js";
import { loadModel, stateOf, stateWords, unloadModel } from "../lib/served.js";
import { LoadBar } from "../load_bar.js";
import { useAction } from "../lib/spoken.js";
import { useModel } from "./use_model.js";

export function Models({ fleet, served, chosen, onChoose }) {
  useModel(fleet, 500);
  const nLoaded = served.models.filter((one) => stateOf(one) === "ready").length;
  return html`
    <section class="card" aria-labelledby="models-title">
      <div class="row"><h2 id="models-title" class="grow">Models</h2><span class="dim small">${`${nLoaded} of ${plural(served.models.length, "model")} loaded. The requests below are those of all models.`}</span></div>
      <ul class="replicas">${served.models.map((one) => html`
        <li key=${one.id}><${Card} one=${one} processes=${fleet.groupsOf(one)} manages=${served.manages} chosen=${chosen} onChoose=${onChoose} /></li>`)}</ul>
    </section>`;
}

function Card({ one, processes, manages, chosen, onChoose }) {
  const state = stateOf(one);
  const isChosen = processes.some(({ name }) => name === chosen);
  const isShown = state === "ready" && processes.length > 0;
  const name = html`<bdi>${shorten(one.id, 40)}</bdi>`;
  return html`
    <div class=${`replica-card model-card${isChosen && isShown ? " chosen" : ""}`} role="group" aria-label=${one.id}>
      <span class="row replica-name">
        ${isShown ? html`<button class="quiet name-button grow ellipsis" aria-pressed=${isChosen} title=${`Show the figures of ${one.id}`} onClick=${() => onChoose(processes[0].name)}><b>${name}</b></button>` : html`<b class="grow ellipsis" title=${one.id}>${name}</b>`}
        ${isChosen && isShown && html`<span class="dim small">shown</span>`}
        <span class=${`badge ${state}`}>${state === "unloaded" ? "not loaded" : state}</span>
      </span>
      ${state === "loading" ? html`<span class="load num"><${LoadBar} model=${one} /><span class="small">${stateWords(one)}</span></span>` : html`<span class="dim small num">${isShown && one.replicas === undefined ? html`<${Figures} model=${processes[0].model} />` : about(one)}</span>`}
      ${isShown && one.replicas !== undefined && html`<${Processes} processes=${processes} of=${one.replicas.length} chosen=${chosen} onChoose=${onChoose} />`}
      ${one.waiting > 0 && html`<span class="small num">${one.waiting === 1 ? "1 request waits for it" : `${plural(one.waiting, "request")} wait for it`}</span>`}
      ${state === "failed" && html`<${Failure} status=${one.status} />`}
      ${manages && html`<${Actions} one=${one} state=${state} />`}
    </div>`;
}

function Processes({ processes, of, chosen, onChoose }) {
  return html`
    ${processes.length < of && html`<span class="small">${`${processes.length} of ${plural(of, "replica")}`}</span>`}
    ${processes.map(({ name, model }) => html`
      <span class="small" key=${name}><button class="quiet name-button" aria-pressed=${name === chosen} title=${`Show the figures of ${name}`} onClick=${() => onChoose(name)}><bdi>${shorten(name, 40)}</bdi></button> <${Figures} model=${model} /></span>`)}`;
}

function Figures({ model }) {
  const now = model.serverNow();
  const speed = now === null ? 0 : model.series.rate(now, "decode");
  return html`<span class="dim small num">${`${model.slotsUsed()} of ${plural(model.server?.capacity.slots ?? 0, "slot")}, ${count(model.waiting().length)} waiting, ${count(speed)} tokens/s`}</span>`;
}

function about({ size, load_seconds: seconds, default: isDefault, aliases }) {
  const facts = [size > 0 && bytes(size), seconds !== null && `loads in ${duration(seconds)}`, isDefault && "the default", aliases.length > 0 && `also ${aliases.join(", ")}`];
  return facts.filter(Boolean).join(", ");
}

const Failure = ({ status: { error, lines = [] } }) => html`
  <p class="small failure" title=${error}>${error}</p>
  ${lines.length > 0 && html`<details class="small"><summary>The last lines of its log</summary><pre class="text" tabindex="0">${lines.join("\n")}</pre></details>`}`;

function Actions({ one, state }) {
  const { busy, problem, run } = useAction();
  const act = (what, done) => run(async () => {
    await what(one.id);
    return `${one.id} ${done}`;
  });
  const button = (text, what, done, kind = "") => html`<button class=${`small ${kind}`} aria-label=${`${text} ${one.id}`} aria-disabled=${busy} onClick=${() => act(what, done)}>${text}</button>`;
  return html`
    <span class="row model-actions">
      ${state === "ready" && button("Unload", unloadModel, "is unloaded")}
      ${state === "loading" && button("Cancel the load", unloadModel, "is not loaded any more", "danger")}
      ${(state === "unloaded" || state === "sleeping") && button("Load", loadModel, "is being loaded")}
      ${state === "failed" && button("Try again", loadModel, "is being loaded")}
      ${problem !== null && html`<span class="badge error" title=${problem}>${shorten(problem, 60)}</span>`}
    </span>`;
}
