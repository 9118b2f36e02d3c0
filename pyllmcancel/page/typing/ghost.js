// The place of grey text, and the part of an answer that is shown there.

const MAX_LINES = 5, MAX_LETTERS = 200;

// null: no place; else {before, after, lines}. Grey text stands only at the end of a line. If text follows, the grey
// text is one line, because the text after it is the textarea's own, and does not move.
export function placeOf(text, caret) {
  const before = text.slice(0, caret), after = text.slice(caret);
  const [restOfLine] = after.split("\n", 1);
  if (before.trim() === "" || restOfLine.trim() !== "") return null;
  return { before, after, lines: after.trim() === "" ? MAX_LINES : 1 };
}

// Return the shown part of an answer: its first lines, up to a word's end, without blank ends.
export function shownOf(answer, lines) {
  const first = answer.split("\n").slice(0, lines).join("\n");
  if (first.length <= MAX_LETTERS) return first.trimEnd();
  const end = first.slice(0, MAX_LETTERS);
  return (/^[^]*\s(?=\S*$)/.exec(end)?.[0].trimEnd() || end);
}

// Return the part of a long text that is sent, as editors do it: whole lines near the caret, since the context may be
// small.
const MAX_BEFORE = 4000, MAX_AFTER = 1000; // characters

export function endOf(before) {
  if (before.length <= MAX_BEFORE) return before;
  const end = before.slice(-MAX_BEFORE);
  return end.slice(end.indexOf("\n") + 1);
}

export function beginOf(after) {
  if (after.length <= MAX_AFTER) return after;
  const begin = after.slice(0, MAX_AFTER), last = begin.lastIndexOf("\n");
  return last === -1 ? begin : begin.slice(0, last);
}
