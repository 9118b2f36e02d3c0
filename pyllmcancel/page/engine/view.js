// The engine's present activity. The address's fragment, #engine/ID, opens a request.
import { fleet } from "../live.js";
import { html, useCallback, useEffect, useState } from "../lib/html.js";
import { EndedList } from "./ended_list.js";
import { Histogram } from "./histogram.js";
import { linkTo, RequestList } from "./request_list.js";
import { Replicas, useReplica } from "./replicas.js";
import { RequestPanel } from "./request_panel.js";
import { Sessions } from "./sessions.js";
import { Spoken } from "./spoken.js";
import { Tiles } from "./tiles.js";
import { Timeline } from "./timeline.js";

export function EngineView() {
  const [id, setId] = useState(openedNow());
  useEffect(() => {
    const follow = () => setId(openedNow());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const open = useCallback((entry) => { location.hash = linkTo(entry.id); }, []);
  const close = useCallback(() => { location.hash = "#engine"; }, []);
  const [name, choose] = useReplica(fleet);
  const model = fleet.modelOf(name);
  const of = name === "" ? "" : html` <span class="dim">of ${name}</span>`;
  return html`
    <div class="engine">
      <${Replicas} fleet=${fleet} chosen=${name} onChoose=${choose} />
      <${Tiles} model=${model} />
      <section class="card timeline-card" aria-labelledby="timeline-title">
        <h2 id="timeline-title">Slots over time${of}</h2>
        <${Timeline} key=${name} model=${model} onOpen=${open} />
      </section>
      <div class="engine-columns">
        <div class="engine-column"><${RequestList} model=${fleet} /><${EndedList} model=${fleet} /></div>
        <div class="engine-column" key=${name}><${Histogram} model=${model} of=${of} /><${Sessions} model=${model} of=${of} /></div>
      </div>
      ${id !== null && html`<${RequestPanel} fleet=${fleet} id=${id} onClose=${close} />`}
      <${Spoken} />
    </div>`;
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
