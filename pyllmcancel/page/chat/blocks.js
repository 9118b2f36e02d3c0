// Converts Markdown to blocks of HTML, so that only the end of a growing answer is converted again. The HTML is not
// safe yet: sanitize.js is the only way from here into the page.
import { Marked } from "../vendor/marked/marked.esm.js";
import { texExtensions } from "./tex.js";

// Tags without attributes that an answer may use; any other markup is shown as text.
const PLAIN_TAG = /^<\/?(?:b|blockquote|br|code|dd|del|details|dl|dt|em|h[1-6]|hr|i|ins|kbd|li|mark|ol|p|pre|s|small|strong|sub|summary|sup|table|tbody|td|th|thead|tr|u|ul)\s*\/?>$/i;
const DEFINES = /^ {0,3}\[[^\]\n]+\]:/m; // [name]: address
const MAX_TEXT = 1_000_000; // characters; a longer text is shown as plain text

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
export const escape = (text) => text.replace(/[&<>"']/g, (character) => ENTITIES[character]);

const renderer = {
  html({ text }) {
    return text.split(/(<[^<>]*>)/).map((piece) => (PLAIN_TAG.test(piece) ? piece : piece.replace(/[<>]/g, (sign) => ENTITIES[sign]))).join("");
  },
  // Nothing is fetched from other hosts: a picture that is not in the text itself becomes a link.
  image({ href, text }) {
    if (href.toLowerCase().startsWith("data:image/")) return `<img src="${escape(href)}" alt="${escape(text)}">`;
    return `<a href="${escape(href)}">${escape(text || "image")}</a>`;
  },
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
};

// People who type markup mean to show it.
const shown = { ...renderer, html: ({ text, block }) => (block ? `<p>${escape(text.trimEnd())}</p>` : escape(text)) };

const extensions = texExtensions(escape);
const answers = new Marked({ gfm: true, breaks: false, renderer, extensions });
const messages = new Marked({ gfm: true, breaks: false, renderer: shown, extensions });

export class Blocks {
  #text = "";
  #settled = []; // blocks that later text cannot change
  #offset = 0; // where they end
  #links = {}; // what they define
  #shown = [];
  #marked;

  // `isTyped`: the text is a person's, not an answer.
  constructor(isTyped = false) { this.#marked = isTyped ? messages : answers; }

  // Return the blocks of `text`: {kind: "html", html} or {kind: "code", text, lang, isOpen}. An unchanged block is the
  // same object as before. `isWhole` means that no text follows, unless the answer is continued. If the text defines links,
  // all of it is then read once more, since they hold for earlier text, too.
  update(text, isWhole = false) {
    const clean = text.replace(/\r\n?/g, "\n");
    if ((isWhole && DEFINES.test(clean)) || !clean.startsWith(this.#text.slice(0, this.#offset))) this.#forget();
    this.#text = clean;
    let blocks;
    try {
      blocks = clean.length > MAX_TEXT ? [plain(clean)] : this.#read();
    } catch {
      // The nesting is too deep for the parser.
      this.#forget();
      blocks = [plain(clean)];
    }
    this.#shown = blocks.map((block, at) => (isSame(block, this.#shown[at]) ? this.#shown[at] : block));
    return this.#shown;
  }

  #forget() { [this.#settled, this.#offset, this.#links] = [[], 0, {}]; }

  #read() {
    const lexer = new this.#marked.Lexer(this.#marked.defaults);
    Object.assign(lexer.tokens.links, this.#links);
    const tokens = lexer.lex(this.#text.slice(this.#offset));
    const blocks = tokens.map((token) => blockOf(this.#marked, token, tokens.links));
    const n = nSettled(tokens);
    this.#settled.push(...blocks.slice(0, n).filter(Boolean));
    this.#offset += tokens.slice(0, n).reduce((sum, { raw }) => sum + raw.length, 0);
    this.#links = tokens.links;
    return [...this.#settled, ...blocks.slice(n).filter(Boolean)];
  }
}

// The last two blocks may still become one: "1. one" and "2", until its dot has come.
function nSettled(tokens) {
  let open = 2;
  for (let at = tokens.length - 1; at >= 0; at -= 1) {
    if (tokens[at].type === "space") continue;
    open -= 1;
    if (open === 0) return at;
  }
  return 0;
}

function blockOf(marked, token, links) {
  if (token.type === "space" || token.type === "def") return null;
  if (token.type === "code") return codeOf(token);
  return { kind: "html", html: marked.parser(Object.assign([token], { links })) };
}

function codeOf({ raw, text, lang = "" }) {
  const [fence] = /^ {0,3}(`{3,}|~{3,})/.exec(raw) ?? [""];
  const isOpen = fence !== "" && !new RegExp(`\\n {0,3}${fence.trim()}+[ \\t]*\\n*$`).test(raw);
  return { kind: "code", text, lang: lang.trim().split(/\s/, 1)[0], isOpen };
}

const plain = (text) => ({ kind: "code", text, lang: "", isOpen: true });

const isSame = (one, other) => other !== undefined && one.kind === other.kind && one.html === other.html && one.text === other.text && one.lang === other.lang && one.isOpen === other.isOpen;
