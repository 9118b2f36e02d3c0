// "Try it": an editor in which every key is a request, with superseding and without, and a plain completion.
import { Timeline } from "../engine/timeline.js";
import { Legend } from "../engine/timeline_legend.js";
import { useModel } from "../engine/use_model.js";
import { fleet } from "../live.js";
import { count, milliseconds, plural } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { listen, useObservable } from "../lib/observable.js";
import { modelOf } from "../lib/served.js";
import { Completion } from "./completion.js";
import { PaneView } from "./pane_view.js";
import { alarm, isOurs, makePanes, measure, size } from "./panes.js";
import { Recording, scriptOf } from "./rhythm.js";
import { Showing } from "./showing.js";
import { figuresOf, latencyOf } from "./statistics.js";

const BEFORE = `class Settings:
    """Settings kept in a file, as JSON."""

    def __init__(self, path):
        self.path = path
        self.values = {}

    def save(self):
        `;
const TYPED = 'with open(self.path, "w") as file:\n            json.dump(';

const PACE = 150; // milliseconds between two drawings of everything but the text

// These outlive the view: typed text is still there when the person comes back.
const panes = makePanes();
for (const pane of panes) pane.put(BEFORE, BEFORE.length);
const showing = new Showing({ alarm });
const recording = new Recording();

function stopAll() {
  showing.stop();
  for (const pane of panes) pane.stop();
}

function learn(event) {
  const ended = event?.type === "ended" ? [event.request] : event?.type === "snapshot" ? event.requests.filter(({ times }) => times.ended !== null) : [];
  for (const entry of ended) for (const pane of panes) pane.learn(entry);
}

export function TypingView() {
  useEffect(() => fleet.events.subscribe(learn), []);
  // Nobody looks, so nothing is left running.
  useEffect(() => {
    const forget = listen(document, "visibilitychange", () => { if (document.hidden) stopAll(); });
    return () => { forget(); stopAll(); };
  }, []);
  return html`
    <div class="try">
      <${TypeAhead} />
      <${Completion} />
    </div>`;
}

function TypeAhead() {
  for (const pane of panes) useModel(pane.changed, PACE);
  const turn = useObservable(showing.state);
  // A request without the name of a model is the default's.
  const served = modelOf(useObservable(fleet.served), "");
  const used = fleet.modelOf(served?.replica ?? "");
  const replicas = served?.replicas === undefined ? [] : fleet.groupsOf(served);
  const groups = replicas.length > 0 ? replicas : [{ name: "", model: used }];
  const [shown, setShown] = useState(null); // the script whose showing has ended

  const show = async (makeScript) => {
    setShown(null);
    setShown(await showing.run(panes, makeScript));
  };
  const measured = async (signal) => scriptOf(BEFORE, TYPED, await measure(BEFORE, signal));
  const toggle = () => (turn === null ? show(measured) : stopAll());
  const onKey = (pane) => (text, caret) => {
    setShown(null);
    size.pace = 1;
    if (pane.supersedes) recording.key(pane.text, text, caret, performance.now());
    pane.type(text, caret);
  };
  const onStop = (pane) => () => (turn?.pane === pane ? stopAll() : pane.stop());
  const again = () => {
    const played = recording.script;
    recording.clear();
    size.pace = 1;
    show(() => played);
  };
  const paneView = (pane) => html`
    <${PaneView} pane=${pane} turn=${turn?.pane === pane ? turn.turn : null} scale=${scaleOf(panes)} now=${performance.now()}
      onKey=${onKey(pane)} onStop=${onStop(pane)} />`;

  return html`
    <section class="try-ahead" aria-labelledby="ahead-title">
      <div class="try-head">
        <h2 id="ahead-title">Type-ahead: a request at every key</h2>
        <p class="dim" id="typing-hint"><kbd>Tab</kbd> accepts the grey text, <kbd>Esc</kbd> dismisses it and cancels. Without grey text <kbd>Tab</kbd> moves on.</p>
        <div class="row">
          <button type="button" class=${turn === null ? "primary" : "danger"} onClick=${toggle}>${turn === null ? "Type for me" : "Stop"}</button>
          ${recording.length > 1 && turn === null && html`<button type="button" onClick=${again}>Type my ${plural(recording.length, "key")} again, in both</button>`}
          <span class="dim" role="status">${turn === null ? "" : turnOf(turn)}</span>
        </div>
        <${Verdict} keys=${shown?.keys.length} />
      </div>
      <section class="card try-engine" aria-labelledby="engine-title">
        <div class="row try-key"><h3 id="engine-title">In the engine</h3><${Legend} /></div>
        <${Timeline} key=${used.replica} groups=${groups} filter=${isOurs} compact span=${10} label="Timeline of this page's requests" />
      </section>
      <div class="try-panes">
        ${panes.map(paneView)}
      </div>
    </section>`;
}

const turnOf = ({ pane, turn, turns }) => pane === null ? "Measuring the model …" : `${turn} of ${turns}: typing ${pane.supersedes ? "with" : "without"} superseding …`;

// Shows the result, after both panes have typed `keys` keys.
function Verdict({ keys }) {
  const [one, two] = panes.map((pane) => ({ ...figuresOf(pane.requests), newest: pane.newest }));
  const isTold = keys !== undefined && one.keys === two.keys && one.keys > 0;
  const line = useRef(null);
  useEffect(() => { if (isTold) line.current.scrollIntoView({ block: "nearest" }); }, [isTold]);
  return html`
    <p class="try-verdict" role="status" ref=${line}>
      ${isTold && html`Grey text for the last key: ${lastAnswer(one.newest)} with superseding, ${lastAnswer(two.newest)} without.
        Computed for nobody: <b class="num">${plural(one.wasted, "token")}</b> with, <b class="num">${count(two.wasted)}</b> without.`}
    </p>`;
}

const lastAnswer = (request) => {
  const latency = latencyOf(request);
  return latency === null ? html`<b>none in 30 s</b>` : html`after <b class="num">${milliseconds(latency)}</b>`;
};

// The highest bar, rounded up to 1, 2 or 5 times a power of ten.
function scaleOf(all) {
  const highest = Math.max(100, ...all.flatMap((pane) => pane.requests.map((request) => latencyOf(request) ?? 0)));
  const power = 10 ** Math.floor(Math.log10(highest));
  return power * [1, 2, 5, 10].find((times) => times * power >= highest);
}
