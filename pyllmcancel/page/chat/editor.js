// An editor of a message's text, in the message's place.
import { html, useLayoutEffect, useRef } from "../lib/html.js";

// `onDone(text)` gets the new text, or null if it is unchanged.
export function Editor({ text, isQuestion, onDone }) {
  const field = useRef(null);
  // Focus the field before anything is typed.
  useLayoutEffect(() => {
    fit(field.current);
    field.current.focus();
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const save = () => {
    const given = field.current.value.trim();
    onDone(given === "" ? null : given);
    focusComposer();
  };
  const leave = () => {
    onDone(null);
    focusComposer();
  };
  const keys = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation(); // the key would also stop an answer
      leave();
    } else if (isSend(event, isQuestion)) {
      event.preventDefault();
      save();
    }
  };
  return html`
    <div class="message-editor">
      <textarea ref=${field} aria-label="The message's text" defaultValue=${text} onInput=${(event) => fit(event.target)} onKeyDown=${keys}></textarea>
      <div class="row">
        <button type="button" class="primary small" onClick=${save}>${isQuestion ? "Send" : "Save"}</button>
        <button type="button" class="small" onClick=${leave}>Cancel</button>
        ${isQuestion && html`<span class="dim hint">Later messages stay, as another version.</span>`}
      </div>
    </div>`;
}

// The place for the focus when the focused button is gone.
export const focusComposer = () => document.querySelector("form.composer textarea")?.focus();

// Enter sends, and with Shift starts a new line. During composition Enter belongs to the input method (Safari ends
// composition before it reports the key, whose code is 229 then). In a longer text only Enter with Ctrl or Command
// sends.
export function isSend(event, isPlain = true) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return false;
  return isPlain || event.ctrlKey || event.metaKey;
}

const FITS_ITSELF = CSS.supports("field-sizing", "content");

// The field is as high as its text, up to a limit in the style. Measuring forces a layout at each key, so it is done
// only if needed.
export function fit(field) {
  if (FITS_ITSELF) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}
