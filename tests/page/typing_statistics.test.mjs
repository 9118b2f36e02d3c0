// What the panes' figures say, where grey text stands, and the rhythm of keys.
import assert from "node:assert/strict";
import { test } from "node:test";
import { beginOf, endOf, placeOf, shownOf } from "../../pyllmcancel/page/typing/ghost.js";
import { Recording, scriptOf } from "../../pyllmcancel/page/typing/rhythm.js";
import { figuresOf, tokensOf } from "../../pyllmcancel/page/typing/statistics.js";

const wastedOf = (given) => tokensOf(given).wasted;
const request = (given) => ({
  keyAt: 0, sentAt: 0, firstAt: null, obsoleteAt: null, endedAt: null, tokens: 0, tokensWhenObsolete: 0, entry: null, ...given,
});

test("a wanted request wastes nothing", () => {
  assert.equal(wastedOf(request({ tokens: 40 })), 0);
});

test("what is computed after a newer key is wasted, also what never reached this side", () => {
  assert.equal(wastedOf(request({ obsoleteAt: 5, tokens: 12, tokensWhenObsolete: 10 })), 2);
  assert.equal(wastedOf(request({ obsoleteAt: 5, tokens: 12, tokensWhenObsolete: 10, entry: { completion_tokens: 13 } })), 3);
});

test("a request that was obsolete when it was sent is wasted with its prompt, but for what was cached", () => {
  const entry = { completion_tokens: 20, prompt_tokens_done: 100, cached_tokens: 90 };
  assert.equal(wastedOf(request({ obsoleteAt: 5, sentAt: 6, tokens: 20, entry })), 30);
});

test("what was computed counts prompts, but not what was cached", () => {
  const entry = { completion_tokens: 3, prompt_tokens_done: 50, cached_tokens: 48 };
  assert.deepEqual(tokensOf(request({ tokens: 3, entry })), { computed: 5, wasted: 0 });
});

test("where the server's clock is known, it says what came after the newer request", () => {
  const entry = { completion_tokens: 40, times: { arrived: 1, first_token: 2, ended: 4 } };
  const old = request({ obsoleteAt: 5, tokens: 40, tokensWhenObsolete: 0, entry });
  const next = (given) => request({ keyAt: 100, sentAt: 101, entry: { times: { arrived: 3.5 } }, ...given });
  assert.equal(tokensOf(old, next()).wasted, 10);
  assert.equal(tokensOf(old, next({ sentAt: 900 })).wasted, 40, "it was not sent at once: what was read counts");
  assert.equal(tokensOf(old, next({ entry: null })).wasted, 40);
  assert.equal(tokensOf(request({ obsoleteAt: 5, entry: { times: { first_token: null, ended: 4 } } }), next()).wasted, 0);
});

test("figures: the newest key's latency is unknown until its text comes", () => {
  const answered = request({ keyAt: 10, firstAt: 25, endedAt: 30 });
  const figures = figuresOf([answered, request({ keyAt: 40 })]);
  assert.deepEqual(figures, { keys: 2, last: null, median: 15, open: 1, computed: 0, wasted: 0 });
});

test("grey text stands at the ends of lines only", () => {
  assert.equal(placeOf("ab", 1), null);
  assert.equal(placeOf("", 0), null);
  assert.deepEqual(placeOf("ab", 2), { before: "ab", after: "", lines: 5 });
});

test("where text follows, grey text is one line", () => {
  const { lines } = placeOf("ab\ncd", 2);
  assert.equal(lines, 1);
  assert.equal(shownOf("one\ntwo", lines), "one");
});

test("the shown part ends without blanks", () => {
  assert.equal(shownOf("one\n\n   ", 6), "one");
});

test("a long line is cut at a word's end", () => {
  assert.equal(shownOf(`${"word ".repeat(39)}a-longer-one`, 5), "word ".repeat(39).trimEnd());
  assert.equal(shownOf("x".repeat(300), 5), "x".repeat(200));
});

test("a script types its text, with the same delays each time", () => {
  const { keys } = scriptOf("x = ", "call(1)");
  assert.equal(keys.at(-1).text, "x = call(1)");
  assert.equal(keys.at(-1).caret, 11);
  assert.ok(keys.every(({ delay }) => delay > 40 && delay < 600));
  assert.deepEqual(scriptOf("x = ", "call(1)").keys, keys);
});

test("a recording begins where the person began, and shortens pauses", () => {
  const recording = new Recording();
  recording.key("a", "ab", 2, 1000);
  recording.key("ab", "abc", 3, 1120);
  recording.key("abc", "abcd", 4, 60_000);
  assert.deepEqual(recording.script, {
    before: "a",
    keys: [{ text: "ab", caret: 2, delay: 0 }, { text: "abc", caret: 3, delay: 120 }, { text: "abcd", caret: 4, delay: 800 }],
  });
});

test("of a long text whole lines near the caret are sent", () => {
  const line = `${"x".repeat(99)}\n`;
  assert.equal(endOf(line.repeat(50) + "end"), line.repeat(39) + "end");
  assert.equal(beginOf("\n" + line.repeat(50)), "\n" + line.repeat(9).trimEnd());
  assert.equal(endOf(line), line);
  assert.equal(beginOf(line), line);
});
