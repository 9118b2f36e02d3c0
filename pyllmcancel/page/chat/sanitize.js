// The only way for HTML into the page. An answer is untrusted: forbidden parts are removed here, and the page's
// Content-Security-Policy keeps the rest from running scripts and from reaching other hosts.
import DOMPurify from "../vendor/dompurify/purify.es.mjs";

const purify = DOMPurify(window);

const COMMON = { ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, ALLOW_UNKNOWN_PROTOCOLS: false, RETURN_DOM_FRAGMENT: true, SANITIZE_DOM: true };

// No ids and names, which scripts could find in place of their own; no styles, forms, frames or media.
const ANSWER = {
  ...COMMON,
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "dd", "del", "details", "dl", "dt", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd", "li",
    "mark", "ol", "p", "pre", "s", "small", "strong", "sub", "summary", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul",
  ],
  ALLOWED_ATTR: ["href", "title", "src", "alt", "start", "align", "class"],
  // DOMPurify treats the value of any other attribute as an address.
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
};

const COLOURS = { ...COMMON, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] };

const FORMULA_ATTRIBUTES = [
  "accent", "accentunder", "class", "columnalign", "columnspan", "depth", "display", "displaystyle", "fence", "form", "height", "largeop", "linethickness",
  "lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "notation", "rowspan", "rspace", "scriptlevel", "separator", "stretchy", "symmetric",
  "voffset", "width",
];
// No links, and no styles: the page's own has what a formula needs.
const FORMULA = {
  ...COMMON,
  ALLOWED_TAGS: [
    "math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts", "mroot", "mrow", "ms", "mspace", "msqrt",
    "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "none", "#text",
  ],
  ALLOWED_ATTR: FORMULA_ATTRIBUTES,
  ADD_URI_SAFE_ATTR: FORMULA_ATTRIBUTES,
};

const MATHML = "http://www.w3.org/1998/Math/MathML";
const CLASSES = { CODE: /^language-[\w+#.-]{1,40}$/, SPAN: /^hljs-[a-z_-]+(?: [a-z]+_)*$/ };
const FORMULA_CLASSES = /^(?:(?:tml|chr|wbk|mord|mathcal|mathscr|menclose)[\w-]*\s*){1,8}$/;
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=]+$/;

purify.addHook("uponSanitizeAttribute", (node, data) => {
  if (data.attrName === "class") data.keepAttr = node.namespaceURI === MATHML ? FORMULA_CLASSES.test(data.attrValue) : CLASSES[node.nodeName]?.test(data.attrValue) ?? false;
  if (data.attrName === "src") data.keepAttr = PICTURE.test(data.attrValue);
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A" && node.hasAttribute("href")) {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
    // A link's address can be seen before it is followed, whatever its text is.
    node.setAttribute("title", node.getAttribute("href"));
  }
  if (node.nodeName === "IMG" && !node.hasAttribute("src")) node.remove();
});

// Return a fragment to put into the page.
export const safeAnswer = (html) => purify.sanitize(html, ANSWER);
export const safeFormula = (html) => purify.sanitize(html, FORMULA);
export const safeColours = (html) => purify.sanitize(html, COLOURS);
