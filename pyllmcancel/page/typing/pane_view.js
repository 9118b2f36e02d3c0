// A pane: the editor, its costs, and its requests.
import { milliseconds } from "../lib/format.js";
import { html, useEffect, useRef } from "../lib/html.js";
import { say } from "../lib/spoken.js";
import { Editor } from "./editor.js";
import { Bars, Figures } from "./figures.js";
import { RequestList } from "./request_list.js";

const TEXTS = {
  true: {
    title: "With superseding",
    about: html`One <code>X-Supersede</code> key: each request cancels the one before it.`,
  },
  false: {
    title: "Without",
    about: html`Every request runs to its end; four run at once, the others wait.`,
  },
};

const REST = 700, BETWEEN = 3000; // milliseconds

// Announce a text after it has stopped changing, and no more often than screen readers can speak.
function useSpoken(text) {
  const lastAt = useRef(-Infinity);
  useEffect(() => {
    const announce = () => {
      if (text !== "") lastAt.current = performance.now();
      say(text);
    };
    const timer = setTimeout(announce, text === "" ? 0 : Math.max(REST, lastAt.current + BETWEEN - performance.now()));
    return () => clearTimeout(timer);
  }, [text]);
}

// The button is never `disabled`: a focused button that is disabled loses the focus.
export function PaneView({ pane, turn, scale, now, onKey, onStop }) {
  const { title, about } = TEXTS[pane.supersedes];
  const id = pane.supersedes ? "with" : "without";
  useSpoken(turn === null && pane.suggestion !== "" ? `Suggestion: ${pane.suggestion}` : "");
  return html`
    <section class=${`card try-pane ${id}`} aria-labelledby=${`${id}-title`} data-typing=${turn !== null}>
      <header>
        <h3 id=${`${id}-title`}>${title}</h3>
        ${turn !== null && html`<span class="badge running">typing</span>`}
        <p class="try-note num" role="status">${noteOf(pane.note)}</p>
        <button class="danger try-stop" type="button" aria-disabled=${pane.isIdle} onClick=${onStop}>Stop</button>
      </header>
      <p class="dim try-about" id=${`${id}-about`}>${about}</p>
      <${Editor} pane=${pane} label=${`Code, ${title.toLowerCase()}`} hint="typing-hint" readOnly=${turn !== null} onKey=${onKey} onStop=${onStop} />
      ${pane.problem && html`<p class="try-problem" role="alert">${pane.problem}</p>`}
      <${Figures} pane=${pane} />
      <${Bars} pane=${pane} scale=${scale} now=${now} />
      <${RequestList} pane=${pane} />
    </section>`;
}

function noteOf(note) {
  if (note === null) return "";
  const { stopped, latency, why } = note;
  const begin = why === "deadline" ? "after 30 s: " : "";
  if (latency === null) return `${begin}nothing was being computed`;
  return `${begin}compute stopped after ${milliseconds(latency)}${stopped > 1 ? ` (slowest of ${stopped})` : ""}`;
}
