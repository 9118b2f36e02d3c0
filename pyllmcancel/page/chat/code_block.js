// A block of code: its language, a button that copies it, and the code, which scrolls inside.
import { useCopy } from "../lib/copy.js";
import { html, useLayoutEffect, useRef } from "../lib/html.js";
import { highlighted } from "./highlight.js";
import { safeColours } from "./sanitize.js";

export function Code({ text, lang, isOpen = false }) {
  const code = useRef(null);
  const [told, copy] = useCopy();
  useLayoutEffect(() => fill(code.current, text, lang, isOpen), [text, lang, isOpen]);
  const name = lang || "text";
  return html`
    <div class="code">
      <div class="code-head"><span>${name}</span><button type="button" class="quiet small" aria-label=${`Copy the ${name}`} onClick=${() => copy(text)}>${told ?? "Copy"}</button></div>
      <pre tabindex="0" aria-label=${`Code, ${name}`}><code ref=${code}></code></pre>
    </div>`;
}

function fill(code, text, lang, isOpen) {
  const colours = highlighted(text, lang.toLowerCase(), isOpen);
  if (colours !== null) code.replaceChildren(safeColours(colours));
  // If the code has only grown at its end, the existing part is kept, with the selection in it.
  else if (isOpen && code.childNodes.length === 1 && code.firstChild.nodeType === Node.TEXT_NODE && text.startsWith(code.firstChild.data)) code.firstChild.appendData(text.slice(code.firstChild.length));
  else code.textContent = text;
}
