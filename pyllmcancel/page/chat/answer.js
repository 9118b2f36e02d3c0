// An answer: reasoning, text, calls of tools, and below it how the answer ended and what it cost.
import { milliseconds } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { modelOf, stateOf, stateWords } from "../lib/served.js";
import { fleet } from "../live.js";
import { LoadBar } from "../load_bar.js";
import { focusComposer } from "./editor.js";
import { Icon } from "./icons.js";
import { Markdown } from "./markdown.js";
import { endWords, errorWords, figures, liveFigures, readingWords } from "./words.js";

export function AnswerBody({ message, draft, answering }) {
  const { content, reasoning = "", toolCalls = [] } = message;
  const isLive = draft !== null;
  const isThinking = isLive && content === "" && toolCalls.length === 0;
  return html`
    ${reasoning !== "" && html`<${Reasoning} text=${reasoning} isLive=${isThinking} speed=${message.speed} />`}
    ${content !== "" && html`<${Markdown} text=${content} isLive=${isLive} />`}
    ${toolCalls.filter(Boolean).map((toolCall) => html`<${ToolCall} key=${toolCall.id} toolCall=${toolCall} isLive=${isLive} />`)}
    ${isLive && html`<${Waiting} draft=${draft} answering=${answering} />`}
    ${isLive && html`<${Figures} shown=${liveFigures(draft.timings)} />`}`;
}

function Reasoning({ text, isLive, speed }) {
  const took = speed?.thought == null ? "" : ` for ${milliseconds(speed.thought)}`;
  return html`
    <details class="fold reasoning">
      <summary>${isLive ? html`<span class="pulse">Thinking …</span>` : `Thought${took}`}</summary>
      <div class="fold-text"><${Markdown} text=${text} isLive=${isLive} /></div>
    </details>`;
}

function ToolCall({ toolCall, isLive }) {
  return html`
    <details class="fold tool">
      <summary>${isLive ? "Calls" : "Called"} <code>${toolCall.name}</code></summary>
      <pre class="fold-text" tabindex="0">${pretty(toolCall.arguments)}</pre>
    </details>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// Shown before the first token, and while the server stops.
function Waiting({ draft, answering }) {
  const served = useObservable(fleet.served);
  if (answering.isStopping) return html`<p class="waiting-line"><span class="dots" aria-hidden="true"></span>Stopping …</p>`;
  if (draft.times.first !== null) return null;
  const { progress } = draft;
  const model = modelOf(served, answering.model);
  if (progress === null && model !== null && stateOf(model) === "loading") return html`<${Loading} model=${model} answering=${answering} />`;
  return html`
    <p class="waiting-line num">
      <span class="dots" aria-hidden="true"></span>
      ${readingWords(progress)}
    </p>`;
}

// The server ends the load if nobody else waits for it.
const Loading = ({ model, answering }) => html`
  <div class="waiting-line load-line">
    <span class="grow num"><bdi>${model.id}</bdi>: ${stateWords(model)}<${LoadBar} model=${model} /></span>
    <button type="button" class="small danger" aria-label=${`Cancel the load of ${model.id}`} title="Ends the load, unless others wait for it" onClick=${() => { answering.stop(); focusComposer(); }}>Cancel</button>
  </div>`;

export function AnswerFoot({ chats, message, isLast, isBusy }) {
  const end = endWords(message);
  const canGoOn = isLast && end !== null && !message.running && message.content !== "" && !message.toolCalls?.length;
  const goOn = canGoOn && html`<button type="button" class="small" disabled=${isBusy} onClick=${() => { chats.goOn(message); focusComposer(); }}>Continue</button>`;
  const retry = isLast && html`<button type="button" class="small" disabled=${isBusy} onClick=${() => { chats.again(message); focusComposer(); }}>Try again</button>`;
  return html`
    ${message.error && html`<${ErrorCard} error=${message.error}>${goOn}${retry}</${ErrorCard}>`}
    ${end !== null && !message.error && html`
      <p class="end-line">
        <span class=${`cut ${message.cut?.why ?? "length"}`}><${Icon} name=${["stopped", "cancelled"].includes(message.cut?.why) ? "stop" : "close"} />${end}</span>
        ${goOn || (message.content === "" && retry)}
      </p>`}
    <${Figures} shown=${figures(message)} />`;
}

const Figures = ({ shown }) => shown.length > 0 && html`<p class="answer-figures num dim">${shown.map(({ text, title }) => html`<span title=${title}>${text}</span>`)}</p>`;

function ErrorCard({ error, children }) {
  const { title, detail } = errorWords(error);
  return html`
    <div class="error-card" role="alert">
      <div class="grow"><strong>${title}</strong><p>${detail}</p></div>
      <div class="row">${children}</div>
    </div>`;
}
