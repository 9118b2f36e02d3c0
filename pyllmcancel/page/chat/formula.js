// Draws formulas in TeX as MathML. The library is loaded with the first one; without it, and for what is no TeX, the
// source stays.
import { safeFormula } from "./sanitize.js";

const SCRIPT = new URL("../vendor/temml/temml.min.js", import.meta.url).href;
// An answer can neither fetch anything, nor define what grows without end, nor cover the page.
const OPTIONS = { throwOnError: true, trust: false, strict: false, maxExpand: 200, maxSize: [10, 10] };

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
  const found = [...fragment.querySelectorAll("code.language-tex-inline, code.language-tex-block")];
  if (found.length === 0) return;
  if (globalThis.temml !== undefined) found.forEach(draw);
  else load().then((isHere) => { if (isHere) found.filter((code) => code.isConnected).forEach(draw); });
}

function draw(code) {
  const displayMode = code.classList.contains("language-tex-block");
  const lines = code.parentElement;
  try {
    const html = globalThis.temml.renderToString(code.textContent, { ...OPTIONS, displayMode });
    // The page's policy forbids inline styles, and the browser reports each before it could be removed from the tree.
    code.replaceWith(safeFormula(html.replace(/ style="[^"]*"/g, "")));
    if (displayMode) lines.tabIndex = 0; // so that it can be scrolled by keys
  } catch {
    code.classList.add("no-tex");
  }
}
