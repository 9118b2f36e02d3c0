// A message's text, to be changed where it stands.
import { html, useLayoutEffect, useRef } from "../lib/html.js";

// `onDone(text)`: the new text, or null if it is to stay.
export function Editor({ text, isQuestion, onDone }) {
  const field = useRef(null);
  // Before anything is typed into it.
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
      event.stopPropagation(); // else it would stop an answer
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
        ${isQuestion && html`<span class="dim hint">What followed stays, as another version.</span>`}
      </div>
    </div>`;
}

// Where the focus goes when the button that had it is gone.
export const focusComposer = () => document.querySelector("form.composer textarea")?.focus();

// Enter sends; with Shift it breaks the line, and while a character is composed it belongs to the input method (Safari
// ends composing before it tells of the key, whose code is 229 then). In a longer text, only with Ctrl or Command.
export function isSend(event, isPlain = true) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return false;
  return isPlain || event.ctrlKey || event.metaKey;
}

const FITS_ITSELF = CSS.supports("field-sizing", "content");

// As high as its text; how high at most says the style. Measuring lays the page out, at each key: only where it must be.
export function fit(field) {
  if (FITS_ITSELF) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}
