// What the events of a stream add up to, and when an answer is not whole.
import assert from "node:assert/strict";
import { test } from "node:test";
import { cutOf, Draft, messageOf } from "../../pyllmcancel/page/chat/draft.js";
import { endWords, errorWords, figures, liveFigures, readingWords } from "../../pyllmcancel/page/chat/words.js";

const piece = (delta, finish = null) => JSON.stringify({ model: "m", choices: [{ index: 0, delta, finish_reason: finish }] });
const usage = { prompt_tokens: 10, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 4 } };

function drafted(...events) {
  const draft = new Draft();
  draft.times.sent = 0;
  events.forEach((event, at) => draft.take(event, 100 * (at + 1)));
  return draft;
}

test("text, reasoning and figures of a whole answer", () => {
  const draft = drafted(piece({ role: "assistant", content: "" }), piece({ reasoning_content: "hm" }), piece({ content: "a" }), piece({ content: "b" }, "stop"), JSON.stringify({ choices: [], usage }), "[DONE]");
  const message = messageOf(draft, null);
  assert.deepEqual([message.content, message.reasoning, message.cut, message.finish, message.running], ["ab", "hm", null, "stop", false]);
  assert.deepEqual(message.speed, { first: 200, thought: 100, perSecond: 10 });
  assert.deepEqual(figures(message).map(({ text }) => text), ["3 tokens", "10 tokens/s", "first token after 200 ms", "prompt 10, 4 reused"]);
  assert.equal(endWords(message), null);
});

test("while an answer is written its tokens and their speed are known by the server's timings", () => {
  const timed = (n, perSecond) => JSON.stringify({ choices: [{ index: 0, delta: { content: "a" } }], timings: { predicted_n: n, predicted_per_second: perSecond } });
  const live = (...events) => liveFigures(drafted(...events).timings).map(({ text }) => text);
  assert.deepEqual(live(), []);
  assert.deepEqual(live(timed(1, 1e6)), ["1 token"]);
  assert.deepEqual(live(timed(1, 1e6), timed(2, 8.53)), ["2 tokens", "8.5 tokens/s"]);
  assert.deepEqual(live(timed(1200, 99.6)), ["1,200 tokens", "100 tokens/s"]);
});

test("an answer that is cut keeps the speed that it had", () => {
  const timings = { predicted_n: 20, predicted_per_second: 50 };
  const draft = drafted(JSON.stringify({ choices: [{ index: 0, delta: { content: "a" } }], timings }), JSON.stringify({ error: { message: "cancelled", code: "explicit" }, usage }));
  assert.equal(messageOf(draft, { cancel_latency_ms: 1 }).speed.perSecond, 50);
});

test("calls come in pieces, several at once", () => {
  const call = (index, fields) => piece({ tool_calls: [{ index, ...fields }] });
  const draft = drafted(call(0, { id: "a", function: { name: "f", arguments: "" } }), call(1, { id: "b", function: { name: "g", arguments: "{}" } }), call(0, { function: { arguments: '{"x"' } }), call(0, { function: { arguments: ":1}" } }), piece({}, "tool_calls"));
  assert.deepEqual(draft.toolCalls, [{ id: "a", name: "f", arguments: '{"x":1}' }, { id: "b", name: "g", arguments: "{}" }]);
});

test("the prompt's progress", () => {
  const draft = drafted(JSON.stringify({ choices: [{ index: 0, delta: {} }], prompt_progress: { total: 900, processed: 512, cache: 0, time_ms: 3 } }));
  assert.deepEqual(draft.progress, { done: 512, total: 900, cached: 0, isEncoding: false });
  assert.equal(draft.times.first, null);
});

test("what a user reads before the first token", () => {
  const reading = (progress) => {
    const draft = drafted(...(progress === null ? [] : [JSON.stringify({ choices: [], prompt_progress: progress })]));
    return readingWords(draft.progress);
  };
  assert.equal(reading(null), "Waiting …");
  assert.equal(reading({ total: 1900, processed: 512 }), "Reading the prompt: 512 of 1,900 tokens");
  assert.equal(reading({ total: 1900, processed: 0, encoding: true }), "Encoding an image …");
});

test("a stream that ends without a finish is cut", () => {
  const lost = { why: "lost", latency: null, phase: null };
  assert.deepEqual(cutOf(drafted(piece({ content: "a" })), null), lost);
  // [DONE] alone does not make an answer whole.
  assert.deepEqual(cutOf(drafted(piece({ content: "a" }), "[DONE]"), null), lost);
});

for (const [code, why] of [["explicit", "cancelled"], ["superseded", "superseded"], ["deadline", "deadline"], ["shutdown", "shutdown"], ["request_failed", "error"], [null, "error"]]) {
  test(`an error event of code ${code} cuts the answer: ${why}`, () => {
    const message = messageOf(drafted(piece({ content: "a" }), JSON.stringify({ error: { message: "no", code }, usage })), null);
    assert.deepEqual([message.cut.why, message.content, message.usage], [why, "a", usage]);
    assert.equal(message.error === null, why !== "error");
    assert.match(endWords(message), /^Cut|^Cancelled explicitly elsewhere/);
  });
}

test("an error after the finish cuts it, too", () => {
  assert.equal(cutOf(drafted(piece({ content: "a" }, "stop"), JSON.stringify({ error: { message: "no", code: "shutdown" } })), null).why, "shutdown");
});

test("a stop says when computing ended, where the server said so", () => {
  const draft = drafted(piece({ content: "a" }), JSON.stringify({ error: { message: "cancelled", code: "explicit" } }));
  assert.equal(endWords(messageOf(draft, { cancel_latency_ms: 1.94, phase: "decode" })), "Cancelled explicitly by you · compute stopped after 1.9 ms");
  assert.equal(endWords(messageOf(draft, {})), "Cancelled explicitly by you");
});

test("an answer that was cancelled elsewhere names who did it as far as known, and the latency if it is known", () => {
  const draft = drafted(piece({ content: "a" }), JSON.stringify({ error: { message: "cancelled", code: "explicit" } }));
  const elsewhere = "Cancelled explicitly elsewhere: by the API, or from another window";
  assert.equal(endWords(messageOf(draft, null)), elsewhere);
  assert.equal(endWords(messageOf(draft, null, { cancel_latency_ms: 2.1, phase: "decode" })), `${elsewhere} · compute stopped after 2.1 ms`);
  assert.equal(endWords(messageOf(draft, null, { cancel_latency_ms: 2.1 }, true)), "Cancelled explicitly by you, in the view Engine · compute stopped after 2.1 ms");
  // Somebody else was faster than the own button.
  assert.equal(endWords(messageOf(draft, { outcome: "already_finished", cancel_latency_ms: 3 })), `${elsewhere} · compute stopped after 3.0 ms`);
});

test("an answer that an older page has kept without a latency shows none", () => {
  assert.equal(endWords({ content: "a", cut: { why: "stopped" } }), "Cancelled explicitly by you");
});

test("a stop that came too late cuts nothing, and one of a broken stream is a stop", () => {
  assert.equal(cutOf(drafted(piece({ content: "a" }, "stop")), { outcome: "already_finished" }), null);
  assert.equal(cutOf(drafted(piece({ content: "a" })), {}).why, "stopped");
  const failed = drafted(JSON.stringify({ error: { message: "x", code: "deadline" } }));
  assert.equal(cutOf(failed, {}).why, "deadline");
});

test("an answer that is gone on with begins with what there was", () => {
  const draft = new Draft("He", "hm");
  draft.take(piece({ content: "llo" }, "length"), 1);
  assert.deepEqual([draft.content, draft.reasoning], ["Hello", "hm"]);
  assert.match(endWords(messageOf(draft, null)), /token limit/);
});

test("errors in words", () => {
  assert.match(errorWords({ status: 429, code: "queue_full", message: "x" }).title, /overloaded/);
  assert.match(errorWords({ status: 400, code: "context_length_exceeded", message: "x" }).detail, /new conversation/);
  assert.match(errorWords({ status: null, code: "unreachable", message: "x" }).title, /reached/);
  assert.equal(errorWords({ status: 400, code: "invalid_request", message: "temperature: no" }).detail, "temperature: no");
});

test("an answer that another window writes is not shown as whole", () => {
  assert.match(endWords({ running: true, content: "a" }), /^Incomplete/);
});
