// Draws formulas in TeX as MathML. The library is loaded with the first one; without it, and for what is no TeX, the
// source stays.
import { capMap } from "../lib/ring.js";
import { safeFormula } from "./sanitize.js";

const SCRIPT = new URL("../vendor/temml/temml.min.js", import.meta.url).href;
// An answer can neither fetch anything, nor define what grows without end, nor cover the page.
const OPTIONS = { throwOnError: true, trust: false, strict: false, maxExpand: 200, maxSize: [10, 10] };

const MAX_DRAWN = 500; // formulas of one block
const MAX_KEPT = 500; // drawn formulas, because a paragraph that grows is drawn again and again

const kept = new Map(); // fragments by kind and source, null for what is no TeX
let loading = null;

function load() {
  loading ??= new Promise((resolve) => {
    const script = Object.assign(document.createElement("script"), { src: SCRIPT });
    script.addEventListener("load", () => {
      noteFont();
      resolve(true);
    });
    script.addEventListener("error", () => {
      loading = null; // tried again with the next formula
      resolve(false);
    });
    document.head.append(script);
  });
  return loading;
}

// Without a font for mathematics some browsers put an index on the line of its base, which the style then corrects.
function noteFont() {
  const probe = Object.assign(document.createElement("div"), { className: "md hidden-text" });
  probe.append(safeFormula("<math><msub><mi>x</mi><mn>1</mn></msub></math>"));
  document.querySelector(".chat").append(probe);
  const [base, index] = [...probe.querySelectorAll("mi, mn")].map((one) => one.getBoundingClientRect());
  document.documentElement.classList.toggle("no-math-font", index.bottom - base.bottom < 0.1 * base.height);
  probe.remove();
}

// Draw the formulas in a fragment; at once if the library is there, so that a growing answer does not flicker.
export function drawFormulas(fragment) {
  const found = [...fragment.querySelectorAll("code.language-tex-inline, code.language-tex-block")].slice(0, MAX_DRAWN);
  if (found.length === 0) return;
  if (globalThis.temml !== undefined) found.forEach(draw);
  else load().then((isHere) => { if (isHere) found.filter((code) => code.isConnected).forEach(draw); });
}

function draw(code) {
  const isBlock = code.classList.contains("language-tex-block"), lines = code.parentElement;
  const formula = formulaOf(code.textContent, isBlock);
  if (formula === null) return code.classList.add("no-tex");
  code.replaceWith(formula.cloneNode(true));
  if (isBlock) lines.tabIndex = 0; // so that it can be scrolled by keys
}

function formulaOf(source, displayMode) {
  const key = `${displayMode} ${source}`;
  if (!kept.has(key)) {
    kept.set(key, made(source, displayMode));
    capMap(kept, MAX_KEPT);
  }
  return kept.get(key);
}

function made(source, displayMode) {
  try {
    const html = globalThis.temml.renderToString(source, { ...OPTIONS, displayMode });
    // The page's policy forbids inline styles, and the browser reports each before it could be removed from the tree.
    return safeFormula(html.replace(/ style="[^"]*"/g, ""));
  } catch {
    return null;
  }
}
