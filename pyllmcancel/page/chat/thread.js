// The messages of a conversation, and the answer that is being written.
import { html, useRef } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { branch, openCalls, siblings } from "./conversation.js";
import { facts } from "./facts.js";
import { fit, focusComposer } from "./editor.js";
import { Message } from "./message.js";

export function Thread({ chats, conversation, isBusy, follow }) {
  const messages = branch(conversation);
  const calls = isBusy ? [] : openCalls(conversation);
  const { system } = conversation.settings;
  return html`
    <div class="thread" ref=${follow.scroller} role="log" aria-live="off" aria-label="Conversation" tabindex="0">
      <div class="thread-column" ref=${follow.content}>
        ${system.trim() !== "" && html`<details class="fold system"><summary>System prompt</summary><div class="fold-text">${system}</div></details>`}
        ${messages.map((message, at) => html`
          <${Message} key=${message.id} ...${{ chats, message, isBusy, versions: siblings(conversation, message), isLast: at === messages.length - 1 }} />`)}
        ${calls.map((toolCall) => html`<${ResultForm} key=${toolCall.id} toolCall=${toolCall} onResult=${(text) => chats.result(toolCall, text)} />`)}
        ${messages.length === 0 && html`<${Empty} onSend=${(text) => chats.send(text)} />`}
      </div>
    </div>`;
}

const BEGINNINGS = [
  "Write a function that reads a CSV file",
  "Explain how a cancel reaches the engine",
  "Compare three ways to sort a list, in a table",
];

function Empty({ onSend }) {
  const known = useObservable(facts);
  return html`
    <div class="empty">
      <h2>${known ? html`Talk to <span class="name">${known.name}</span>` : "Talk to the model"}</h2>
      <p class="dim">Every answer can be stopped at once, and reports when the computation has ended.</p>
      <ul class="beginnings">${BEGINNINGS.map((text) => html`<li><button type="button" onClick=${() => onSend(text)}>${text}</button></li>`)}</ul>
    </div>`;
}

// The person plays the tool.
function ResultForm({ toolCall, onResult }) {
  const field = useRef(null);
  const send = (event) => {
    event.preventDefault();
    onResult(field.current.value);
    focusComposer();
  };
  return html`
    <form class="result-form" onSubmit=${send}>
      <label class="field"><span class="ellipsis">Result of <code>${toolCall.name} <span class="dim">${toolCall.arguments}</span></code></span>
        <textarea ref=${field} class="mono" rows="2" onInput=${(event) => fit(event.target)}></textarea>
      </label>
      <button type="submit" class="small">Give the result</button>
    </form>`;
}
