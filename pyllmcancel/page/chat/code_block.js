// A block of code: its language, a button that copies it, and the code, which scrolls inside.
import { highlighted } from "./highlight.js";
import { safeColours } from "./sanitize.js";

const TOLD = 1500; // milliseconds for which the button says that it has copied

function make(tag, className, fields = {}) {
  return Object.assign(document.createElement(tag), { className, ...fields });
}

// {element, update({text, lang, isOpen})}. The element stays the same while the code grows, and keeps its scroll
// position, the selection before its end, and the focus.
export function makeCode() {
  const element = make("div", "code");
  const head = make("div", "code-head");
  const name = make("span", "code-name");
  const copy = make("button", "quiet small", { type: "button", textContent: "Copy" });
  const pre = make("pre", "");
  const code = make("code", "");
  pre.tabIndex = 0; // so that it can be scrolled by keys
  head.append(name, copy);
  pre.append(code);
  element.append(head, pre);
  copy.addEventListener("click", async () => {
    copy.textContent = (await copyText(code.textContent)) ? "Copied" : "Not allowed";
    setTimeout(() => { copy.textContent = "Copy"; }, TOLD);
  });
  return { element, update: (block) => update({ name, copy, pre, code }, block) };
}

function update({ name, copy, pre, code }, { text, lang, isOpen }) {
  name.textContent = lang || "text";
  copy.setAttribute("aria-label", `Copy the ${lang || "text"}`);
  pre.setAttribute("aria-label", `Code, ${lang || "text"}`);
  const html = highlighted(text, lang.toLowerCase(), isOpen);
  if (html !== null) code.replaceChildren(safeColours(html));
  // If the code has only grown at its end, the existing part is kept.
  else if (isOpen && code.childNodes.length === 1 && code.firstChild.nodeType === Node.TEXT_NODE && text.startsWith(code.firstChild.data)) code.firstChild.appendData(text.slice(code.firstChild.length));
  else code.textContent = text;
}

// Returns whether the text was copied. Without https, only the old API can reach the clipboard.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const field = make("textarea", "hidden-text", { value: text });
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return isDone;
  }
}
