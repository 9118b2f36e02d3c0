// Markdown in the page.
import { html, render, useLayoutEffect, useRef } from "../lib/html.js";
import { Blocks } from "./blocks.js";
import { Code } from "./code_block.js";
import { drawFormulas } from "./formula.js";
import { safeAnswer } from "./sanitize.js";

// `isLive`: the text is still growing. `isTyped`: a person has typed it.
export function Markdown({ text, isLive = false, isTyped = false }) {
  const blocks = useRef(null);
  const last = useRef({ text: null });
  blocks.current ??= new Blocks(isTyped);
  if (last.current.text !== text || last.current.isLive !== isLive) {
    last.current = { text, isLive, shown: blocks.current.update(text, !isLive) };
  }
  return html`
    <div class=${`md ${isLive ? "live" : ""} ${isTyped ? "typed" : ""}`}>
      ${last.current.shown.map((block, at) => (block.kind === "code" ? html`<div class="md-block" key=${`c${at}`}><${Code} ...${block} /></div>` : html`<${Html} key=${at} block=${block} />`))}
    </div>`;
}

function Html({ block }) {
  const holder = useRef(null);
  useLayoutEffect(() => {
    const fragment = safeAnswer(block.html);
    furnish(fragment);
    holder.current.replaceChildren(fragment);
  }, [block]);
  return html`<div class="md-block" ref=${holder}></div>`;
}

// Code in lists and quotes gets its button, formulas are drawn, and tables scroll inside.
function furnish(fragment) {
  for (const pre of fragment.querySelectorAll("pre")) {
    const inner = pre.querySelector("code") ?? pre;
    const holder = document.createElement("div");
    render(html`<${Code} text=${inner.textContent.replace(/\n$/, "")} lang=${/language-(\S+)/.exec(inner.className)?.[1] ?? ""} />`, holder);
    pre.replaceWith(holder);
  }
  drawFormulas(fragment);
  for (const table of fragment.querySelectorAll("table")) {
    const scroller = Object.assign(document.createElement("div"), { className: "table-scroll", tabIndex: 0 });
    table.replaceWith(scroller);
    scroller.append(table);
  }
}
