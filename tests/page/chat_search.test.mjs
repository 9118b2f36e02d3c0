// A search in conversations, and the share of the context that one takes.
import assert from "node:assert/strict";
import { test } from "node:test";
import { excerptOf, wordsOf } from "../../pyllmcancel/page/chat/search.js";

globalThis.document = { baseURI: "http://localhost/" }; // the API's base is the page's
const { contextOf } = await import("../../pyllmcancel/page/chat/context.js");

const conversation = (title, ...contents) => ({ title, messages: contents.map((content) => ({ content })) });

test("all words have to be there, in the name or in any message, in any case", () => {
  const found = conversation("Trees", "How do I balance one?", "Rotate it LEFT.");
  assert.equal(excerptOf(found, wordsOf("  rotate tree ")), "Rotate it LEFT.");
  assert.equal(excerptOf(found, wordsOf("balance left rotate")), "How do I balance one?");
  assert.equal(excerptOf(found, wordsOf("trees")), "");
  assert.equal(excerptOf(found, wordsOf("trees graph")), null);
});

test("an excerpt is short, and shows where the match is", () => {
  const excerpt = excerptOf(conversation("t", `${"before ".repeat(50)}\n\nneedle ${"after ".repeat(50)}`), ["needle"]);
  assert.match(excerpt, /^…\S.* needle after .*…$/);
  assert.ok(excerpt.length < 100, excerpt);
});

test("attached files are searched, too", () => {
  const messages = [{ content: "see there", files: [{ name: "notes.txt", text: "the needle" }] }];
  assert.equal(excerptOf({ title: "t", messages }, ["needle"]), "the needle");
});

const usage = (prompt, completion) => ({ usage: { prompt_tokens: prompt, completion_tokens: completion } });

test("the context is taken by the prompt and the answer of the last request", () => {
  assert.deepEqual(contextOf([{}, usage(10, 5), {}, usage(30, 20), {}], 100), { used: 50, size: 100, isNearlyFull: false });
  assert.equal(contextOf([usage(60, 20)], 100).isNearlyFull, true);
  assert.equal(contextOf([usage(60, 20)], null), null);
  assert.equal(contextOf([{ usage: null }], 100), null);
});

test("while an answer is written, the context is taken by its prompt and what it has", () => {
  const used = (draft) => contextOf([usage(10, 5), {}], 100, draft)?.used;
  assert.equal(used({ progress: null, timings: null }), 15);
  assert.equal(used({ progress: { total: 30, done: 4 }, timings: null }), 30);
  assert.equal(used({ progress: { total: 30, done: 30 }, timings: { cache_n: 10, prompt_n: 20, predicted_n: 7 } }), 37);
  assert.equal(used({ progress: null, timings: { cache_n: 10, prompt_n: 20, predicted_n: 7 } }), 37);
});
