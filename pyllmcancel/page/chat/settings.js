// The settings that a conversation sends with its messages: the system prompt, sampling, tools.
import { Dialog } from "../lib/dialog.js";
import { html, useRef, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { NO_SETTINGS } from "./conversation.js";
import { facts } from "./facts.js";
import { IconButton } from "./icons.js";
import { defaultOf, EFFORTS, FIELDS, readTools } from "./request_body.js";

export function Settings({ chats, conversation, onClose }) {
  const known = useObservable(facts);
  const form = useRef(null);
  const [problem, setProblem] = useState(null);
  const { settings } = conversation;
  const read = () => {
    const given = new FormData(form.current);
    const numbers = FIELDS.map(({ name }) => [name, given.get(name)]).filter(([, text]) => text !== "");
    const sampling = Object.fromEntries(numbers.map(([name, text]) => [name, Number(text)]));
    const text = (name) => given.get(name) ?? "";
    return { system: text("system"), model: settings.model, stop: text("stop"), tools: text("tools"), effort: text("effort"), sampling };
  };
  const save = (event) => {
    const wanted = read();
    const { problem: wrong } = readTools(wanted.tools);
    setProblem(wrong);
    if (wrong !== null) {
      event.preventDefault();
      const tools = form.current.elements.tools;
      tools.closest("details").open = true;
      tools.focus();
      return;
    }
    if (event.submitter?.name === "always") chats.keepDefaults(wanted);
    chats.set(wanted);
  };
  const clear = () => {
    for (const element of form.current.elements) if (element.name in NO_SETTINGS || FIELDS.some(({ name }) => name === element.name)) element.value = "";
  };
  return html`
    <${Dialog} class="settings-sheet" aria-labelledby="settings-title" onClose=${onClose}>
      <form method="dialog" ref=${form} onSubmit=${save}>
        <header class="settings-sheet-head"><h2 id="settings-title">Settings of this conversation</h2><${IconButton} icon="close" label="Close" onClick=${() => form.current.closest("dialog").close()} /></header>
        <div class="settings-sheet-body">
          <label class="field">System prompt
            <textarea name="system" rows="5" defaultValue=${settings.system} placeholder="The model's role, and how to answer"></textarea>
          </label>
          <fieldset>
            <legend>Sampling</legend>
            <p class="dim">Empty fields use the server's defaults.</p>
            <div class="numbers">${FIELDS.map((field) => html`<${NumberField} field=${field} value=${settings.sampling[field.name]} params=${known?.params} />`)}</div>
          </fieldset>
          ${(known?.reasons || settings.effort !== "") && html`
            <label class="field">Reasoning
              <select name="effort"><option value="">The model's default</option>${EFFORTS.map((effort) => html`<option value=${effort} selected=${effort === settings.effort}>${effort}</option>`)}</select>
            </label>`}
          <label class="field">Stop strings, one a line
            <textarea name="stop" rows="2" class="mono" defaultValue=${settings.stop}></textarea>
          </label>
          <details open=${settings.tools !== ""}>
            <summary>Tools</summary>
            <label class="field">A list of functions, as in OpenAI's API
              <textarea name="tools" rows="8" class="mono" spellcheck=${false} defaultValue=${settings.tools} placeholder=${EXAMPLE} aria-invalid=${problem !== null} aria-describedby="tools-problem"></textarea>
            </label>
            <p class="refusal" id="tools-problem" role="alert">${problem}</p>
            <p class="dim">You play the tools: when the model calls one, you are asked for its result.</p>
          </details>
        </div>
        <footer class="settings-sheet-foot row">
          <button type="submit" class="primary">Save</button>
          <button type="submit" name="always">Save, also for new conversations</button>
          <button type="button" class="quiet" onClick=${clear}>Clear</button>
        </footer>
      </form>
    </${Dialog}>`;
}

const EXAMPLE = `[{"name": "weather", "description": "…",
  "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}}}}]`;

function NumberField({ field, value, params }) {
  const { name, label, hint, min, max, step } = field;
  return html`
    <label class="field" title=${hint}>${label}
      <input type="number" name=${name} inputmode="decimal" min=${min} max=${max} step=${step < 1 ? "any" : step} defaultValue=${value ?? ""} placeholder=${defaultOf(params, name)} />
    </label>`;
}
