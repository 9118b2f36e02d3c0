// Markdown in the page.
import { html, useLayoutEffect, useRef } from "../lib/html.js";
import { Blocks } from "./blocks.js";
import { makeCode } from "./code_block.js";
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
      ${last.current.shown.map((block, at) => (block.kind === "code" ? html`<${Code} key=${`c${at}`} block=${block} />` : html`<${Html} key=${at} block=${block} />`))}
    </div>`;
}

function Code({ block }) {
  const holder = useRef(null);
  const code = useRef(null);
  useLayoutEffect(() => {
    code.current ??= makeCode();
    code.current.update(block);
    if (code.current.element.parentNode !== holder.current) holder.current.append(code.current.element);
  }, [block]);
  return html`<div class="md-block" ref=${holder}></div>`;
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
    const code = makeCode();
    code.update({ text: inner.textContent.replace(/\n$/, ""), lang: /language-(\S+)/.exec(inner.className)?.[1] ?? "", isOpen: false });
    pre.replaceWith(code.element);
  }
  drawFormulas(fragment);
  for (const table of fragment.querySelectorAll("table")) {
    const scroller = document.createElement("div");
    scroller.className = "table-scroll";
    scroller.tabIndex = 0;
    table.replaceWith(scroller);
    scroller.append(table);
  }
}
