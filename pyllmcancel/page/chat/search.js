// A search in conversations: those that have all the words, in any order, in their name or their messages.

const BEFORE = 24, AFTER = 60; // characters of an excerpt around the first word

export const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter((word) => word !== "");

// Return the text around the first match in the messages; "" if only the name matches; null if a word is missing.
export function excerptOf({ title, messages }, words) {
  const texts = messages.flatMap(({ content, files = [] }) => [content, ...files.flatMap(({ name, text }) => [name, text])]);
  const lower = texts.map((text) => text.toLowerCase());
  const inTitle = title.toLowerCase();
  if (!words.every((word) => inTitle.includes(word) || lower.some((text) => text.includes(word)))) return null;
  const word = words.find((one) => lower.some((text) => text.includes(one)));
  if (word === undefined) return "";
  const at = lower.findIndex((text) => text.includes(word));
  return around(texts[at], lower[at].indexOf(word), word.length);
}

function around(text, at, length) {
  const from = Math.max(0, at - BEFORE), until = at + length + AFTER;
  return `${from > 0 ? "…" : ""}${text.slice(from, until).replace(/\s+/g, " ").trim()}${until < text.length ? "…" : ""}`;
}
