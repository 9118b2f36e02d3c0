// Formulas in Markdown: \(…\) and $…$ in a line, \[…\] and $$…$$ in lines of their own. Here they become marked pieces
// of code, which formula.js draws.

const MAX_INLINE = 1000, MAX_BLOCK = 4000; // characters; anything longer is text
const WINDOW = 500; // characters in which the next formula is looked for at once: a long text is not searched for each of its words
const PARAGRAPH = 8000; // characters of a paragraph in which a formula of its own lines is looked for

// A dollar beside a space, or before a word, is money: "$5 and $10".
const INLINE = new RegExp(`^(?:\\\\\\(((?:(?!\\n\\s*\\n)[^]){1,${MAX_INLINE}}?)\\\\\\)|\\$\\$([^$\\n]{1,${MAX_INLINE}})\\$\\$|\\$(?![\\s$])((?:\\\\.|[^\\\\$\\n]){1,${MAX_INLINE}}?)(?<![\\s\\\\])\\$(?![\\w$]))`);
const BLOCK = new RegExp(`^ {0,3}(?:\\$\\$((?:(?!\\n\\s*\\n|\\$\\$)[^]){1,${MAX_BLOCK}}?)\\$\\$|\\\\\\[((?:(?!\\n\\s*\\n)[^]){1,${MAX_BLOCK}}?)\\\\\\])[ \\t]*(?:\\n+|$)`);

// Marked's extensions; `escape` makes text safe in HTML.
export const texExtensions = (escape) => [
  {
    name: "formula",
    level: "inline",
    start: nextInline,
    tokenizer: (text) => tokenOf("formula", INLINE.exec(text)),
    renderer: ({ tex }) => `<code class="language-tex-inline">${escape(tex)}</code>`,
  },
  {
    name: "formulas",
    level: "block",
    start: nextBlock,
    tokenizer: (text) => tokenOf("formulas", BLOCK.exec(text)),
    renderer: ({ tex }) => `<p><code class="language-tex-block">${escape(tex)}</code></p>\n`,
  },
];

function nextInline(text) {
  const near = text.slice(0, WINDOW), at = near.search(/\$|\\\(/);
  if (at >= 0) return at;
  const space = text.length > WINDOW ? near.lastIndexOf(" ") : -1;
  return space > 0 ? space : undefined;
}

// Only what is a formula ends a paragraph: a text of many dollars would be a paragraph for each of its lines.
function nextBlock(text) {
  const end = text.indexOf("\n\n");
  const near = text.slice(0, Math.min(end < 0 ? Infinity : end, PARAGRAPH));
  for (const { index } of near.matchAll(/\n(?= {0,3}(?:\$\$|\\\[))/g)) {
    if (tokenOf("formulas", BLOCK.exec(text.slice(index + 1, index + PARAGRAPH))) !== undefined) return index + 1;
  }
  return undefined;
}

function tokenOf(type, found) {
  if (found === null) return undefined;
  const tex = found.slice(1).find((one) => one !== undefined).trim();
  return tex === "" ? undefined : { type, raw: found[0], tex };
}
