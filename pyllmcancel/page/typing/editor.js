// A textarea with grey text after its caret. The grey text is in a mirror below the textarea: the same letters,
// invisible, then the suggestion. Both break lines between any two letters, so that no suggestion moves a word of the
// typed text.
import { html, useEffect, useLayoutEffect, useRef } from "../lib/html.js";
import { listen, useObservable } from "../lib/observable.js";

export function Editor({ pane, label, hint, readOnly, onKey, onStop }) {
  const box = useRef(null), area = useRef(null), ghost = useRef(null);
  const accepting = useRef(false);
  useObservable(pane.changed);
  const { suggestion } = pane;

  // Typed on the person's behalf: the caret moves as a person's would, and stays visible.
  useLayoutEffect(() => {
    if (readOnly) area.current.setSelectionRange(pane.caret, pane.caret);
  }, [readOnly, pane.text]);
  // If the panes are below each other, the one that is typed in is scrolled into view.
  useLayoutEffect(() => { if (readOnly) box.current.scrollIntoView({ block: "nearest" }); }, [readOnly]);
  // Grey text that ends below the box is scrolled into view, unless the person has scrolled.
  useLayoutEffect(() => {
    const overflow = ghost.current.getBoundingClientRect().bottom + 10 - box.current.getBoundingClientRect().bottom;
    if (overflow > 0 && (readOnly || suggestion !== "")) box.current.scrollTop += overflow;
  }, [readOnly, pane.text, suggestion]);

  const typed = ({ target, isComposing }) => {
    if (accepting.current || isComposing) pane.put(target.value, target.selectionEnd);
    else onKey(target.value, target.selectionEnd);
  };
  const composed = ({ target }) => onKey(target.value, target.selectionEnd);
  useEffect(() => listen(document, "selectionchange", () => {
    const { value, selectionEnd } = area.current;
    // Before its `input` event a new text is not the pane's text yet.
    if (document.activeElement === area.current && !readOnly && value === pane.text) pane.put(value, selectionEnd);
  }), [pane, readOnly]);
  const accept = () => {
    area.current.focus();
    accepting.current = true;
    // The only way to insert that can be undone.
    document.execCommand("insertText", false, suggestion);
    accepting.current = false;
  };
  const pressed = (event) => {
    const bare = !event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey;
    if (event.key === "Tab" && bare && suggestion !== "" && !readOnly) {
      event.preventDefault();
      accept();
    } else if (event.key === "Escape" && bare && !event.isComposing && (suggestion !== "" || !pane.isIdle || readOnly)) {
      event.preventDefault();
      onStop();
    }
  };
  const before = pane.text.slice(0, pane.caret), after = pane.text.slice(pane.caret);
  return html`
    <div class="try-editor" ref=${box}>
      <div class="try-sheet">
        <div class="try-mirror" aria-hidden="true"><span>${before}</span><span class="try-ghost" ref=${ghost}>${suggestion}</span><span>${after}${"\n"}</span></div>
        <textarea ref=${area} value=${pane.text} readOnly=${readOnly} aria-label=${label} aria-describedby=${hint} spellcheck=${false}
          autocomplete="off" autocapitalize="off" autocorrect="off" onInput=${typed} onCompositionEnd=${composed}
          onKeyDown=${pressed}></textarea>
      </div>
    </div>
    <button class="try-accept" type="button" aria-disabled=${suggestion === ""} onPointerDown=${(event) => event.preventDefault()}
      onClick=${() => { if (suggestion !== "" && !readOnly) accept(); }}>Accept the grey text</button>`;
}
