// The engine's present activity. The address's fragment, #engine/ID, opens a request.
import { fleet } from "../live.js";
import { html, useCallback, useState } from "../lib/html.js";
import { useEvent, useObservable } from "../lib/observable.js";
import { stateOf } from "../lib/served.js";
import { EndedList } from "./ended_list.js";
import { Histogram } from "./histogram.js";
import { Models } from "./models.js";
import { linkTo, RequestList } from "./request_list.js";
import { RequestPanel } from "./request_panel.js";
import { Sessions } from "./sessions.js";
import { Tiles } from "./tiles.js";
import { Timeline } from "./timeline.js";
import { useModel } from "./use_model.js";

export function EngineView() {
  const id = useEvent(window, "hashchange", openedNow);
  const open = useCallback((entry) => { location.hash = linkTo(entry.id); }, []);
  const close = useCallback(() => { location.hash = "#engine"; }, []);
  const served = useObservable(fleet.served);
  const [wanted, choose] = useState(null); // one of several replicas, whose figures and slots are shown
  const name = fleet.names.find((one) => one === wanted) ?? fleet.names[0] ?? "";
  useModel(fleet, 500);
  const model = fleet.modelOf(name);
  const isAlone = served?.models.length === 1 && served.models[0].replicas === undefined; // a server of one model, which may sleep
  const of = name === "" || isAlone ? "" : html` <span class="dim">of ${name}</span>`;
  const loaded = served === null ? null : loadedGroups(served);
  const isIdle = loaded?.length === 0;
  const groups = loaded === null || isAlone ? [{ name: "", model }] : loaded;
  return html`
    <div class="engine">
      ${served !== null && (!isAlone || stateOf(served.models[0]) !== "ready") && html`<${Models} fleet=${fleet} served=${served} chosen=${name} onChoose=${choose} />`}
      ${!isIdle && html`
        <${Tiles} model=${model} />
        <section class="card timeline-card" aria-labelledby="timeline-title">
          <h2 id="timeline-title">Slots over time${groups[0].name === "" ? of : ""}</h2>
          <${Timeline} key=${groups[0].name === "" ? name : "all"} groups=${groups} onOpen=${open} />
        </section>`}
      <div class="engine-columns">
        <div class="engine-column"><${RequestList} model=${fleet} /><${EndedList} model=${fleet} /></div>
        ${!isIdle && html`<div class="engine-column" key=${name}><${Histogram} model=${model} of=${of} /><${Sessions} model=${model} of=${of} /></div>`}
      </div>
      ${id !== null && html`<${RequestPanel} fleet=${fleet} id=${id} onClose=${close} />`}
    </div>`;
}

// The lanes of every model that has a process: one that is about to end may still compute.
function loadedGroups(served) {
  return served.models.flatMap((one) => fleet.groupsOf(one).map(({ name, model }) => ({ name: one.replicas ? name : one.id, model })));
}

function openedNow() {
  const [view, ...id] = location.hash.slice(1).split("/");
  if (view !== "engine" || id.length === 0) return null;
  try {
    return decodeURIComponent(id.join("/"));
  } catch {
    return id.join("/"); // written by hand
  }
}
