// The replicas side by side, if there are several. One of them is chosen here, and its figures and slots are shown
// below.
import { count, plural, shorten } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useModel } from "./use_model.js";

// The name of the replica that is shown, and the function that chooses another one.
export function useReplica(fleet) {
  const [wanted, choose] = useState(null);
  useModel(fleet, 500);
  const known = fleet.named().filter((one) => one.model !== null);
  const shown = known.find((one) => one.name === wanted) ?? known[0];
  return [shown?.name ?? "", choose];
}

export function Replicas({ fleet, chosen, onChoose }) {
  const all = fleet.named();
  if (all.length === 0) return null;
  return html`
    <section class="card" aria-labelledby="replicas-title">
      <div class="row"><h2 id="replicas-title" class="grow">Replicas</h2><span class="dim small">The requests below are those of all replicas.</span></div>
      <ul class="replicas">${all.map((one) => html`<li key=${one.name}><${Replica} one=${one} isChosen=${one.name === chosen} onChoose=${onChoose} /></li>`)}</ul>
    </section>`;
}

function Replica({ one: { name, model, lost }, isChosen, onChoose }) {
  const isLost = lost !== null;
  return html`
    <button class=${`replica-card${isLost ? " lost" : ""}`} aria-pressed=${isChosen} aria-disabled=${model === null} onClick=${() => model !== null && onChoose(name)} title=${isLost ? lost : `Show the slots and figures of ${name}`}>
      <span class="row replica-name"><b class="grow ellipsis"><bdi>${shorten(name, 40)}</bdi></b>${isLost && html`<span class="badge lost">lost</span>`}${isChosen && html`<span class="dim small">shown</span>`}</span>
      ${isLost ? html`<span class="dim small ellipsis">${lost}</span>` : model !== null && html`<${Figures} model=${model} />`}
    </button>`;
}

export function Figures({ model }) {
  const now = model.serverNow();
  const running = [...model.live.values()].filter((entry) => entry.t.admitted !== null);
  const used = running.reduce((sum, entry) => sum + Math.max(1, entry.slots.length), 0);
  const speed = now === null ? 0 : model.series.rate(now, "decode");
  return html`<span class="dim small num">${`${used} of ${plural(model.server?.capacity.slots ?? 0, "slot")}, ${count(model.waiting().length)} waiting, ${count(speed)} tokens/s`}</span>`;
}
