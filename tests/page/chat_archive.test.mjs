// Conversations as files, and what is kept of them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fromJson, toJson, toMarkdown } from "../../pyllmcancel/page/chat/archive.js";
import { add, branch, newConversation } from "../../pyllmcancel/page/chat/conversation.js";
import { excess, MAX_KEPT, MAX_SIZE, MemoryStorage, sizeOf } from "../../pyllmcancel/page/chat/storage.js";

function spoken() {
  const conversation = newConversation({ system: "Be short.", sampling: { temperature: 0.5 } });
  const question = add(conversation, null, { role: "user", content: "one?", images: ["data:image/png;base64,AA=="] });
  add(conversation, question.id, { role: "assistant", content: "first", finish: "stop", cut: null, error: null });
  const toolCalls = [{ id: "a", name: "f", arguments: '{"x": 1}' }];
  const answer = add(conversation, question.id, { role: "assistant", content: "sec", reasoning: "hm", toolCalls, cut: { why: "stopped", latency: 1.94, phase: "decode" }, usage: { prompt_tokens: 3, completion_tokens: 1 } });
  add(conversation, answer.id, { role: "tool", content: "```", toolCallId: "a" });
  return conversation;
}

const told = (conversation) => branch(conversation).map(({ role, content, reasoning, cut, toolCalls }) => ({ role, content, reasoning, cut, toolCalls }));

test("what was exported is imported, beside what is there", () => {
  const before = spoken();
  const [after] = fromJson(toJson([before]));
  assert.notEqual(after.id, before.id);
  assert.deepEqual([after.title, after.settings], [before.title, before.settings]);
  assert.equal(after.messages.length, before.messages.length);
  const [question, answer, result] = told(after);
  assert.deepEqual(branch(after)[0].images, ["data:image/png;base64,AA=="]);
  assert.deepEqual([question.content, answer.reasoning, answer.cut, result.content], ["one?", "hm", { why: "stopped", latency: 1.94, phase: "decode" }, "```"]);
});

test("messages as the API takes them are imported", () => {
  const [found] = fromJson(JSON.stringify({ model: "m", messages: [
    { role: "system", content: "Be short." }, { role: "user", content: [{ type: "text", text: "hi" }] },
    { role: "assistant", content: null, tool_calls: [{ id: "a", function: { name: "f", arguments: "{}" } }] }, { role: "tool", tool_call_id: "a", content: "1" }, { role: "assistant", content: "ho" }] }));
  assert.equal(found.settings.system, "Be short.");
  assert.deepEqual(branch(found).map(({ role, content }) => [role, content]), [["user", "hi"], ["assistant", ""], ["tool", "1"], ["assistant", "ho"]]);
  assert.equal(branch(found)[1].toolCalls[0].name, "f");
});

test("an answer that was cancelled on the page's other view is imported as that", () => {
  const conversation = newConversation();
  const cut = { why: "cancelled", latency: 2, phase: "decode", byPage: true };
  add(conversation, add(conversation, null, { role: "user", content: "?" }).id, { role: "assistant", content: "a", cut });
  assert.deepEqual(branch(fromJson(toJson([conversation]))[0])[1].cut, cut);
});

test("attached text files are exported, imported, and counted", () => {
  const conversation = newConversation();
  add(conversation, null, { role: "user", content: "?", files: [{ name: "a.txt", text: "needle" }] });
  assert.deepEqual(branch(fromJson(toJson([conversation]))[0])[0].files, [{ name: "a.txt", text: "needle" }]);
  assert.match(toMarkdown(conversation), /File a\.txt:\n\n```txt\nneedle\n```\n\n\?/);
  const without = newConversation();
  add(without, null, { role: "user", content: "?" });
  assert.equal(sizeOf(conversation) - sizeOf(without), "needle".length);
  const strange = toJson([{ messages: [{ role: "user", content: "?", files: [null, { name: 3, text: "x" }, { name: "b" }] }] }]);
  assert.deepEqual(branch(fromJson(strange)[0])[0].files, [{ name: "file", text: "x" }]);
});

test("a strange file is refused in words", () => {
  for (const text of ["", "{", "1", "null", "{}", "[]", '{"messages": 3}', '{"format": "pyllmcancel-chats", "conversations": [null, 3, {"messages": [{"role": "root"}]}]}']) assert.throws(() => fromJson(text), /this file/, text);
});

test("of a strange message only what has its type is taken", () => {
  const raw = { id: "x", role: "assistant", content: 7, toolCalls: "f", cut: { why: "<b>" }, error: 3, usage: { prompt_tokens: "x" }, speed: null, running: true };
  const image = { id: "y", parent: "x", role: "user", content: "hi", images: ["https://example.org/x.png", "data:text/html,x", "data:image/svg+xml;base64,AA=="] };
  const [found] = fromJson(toJson([{ messages: [raw, image], settings: { sampling: { temperature: "hot", seed: 1 }, effort: "huge" }, title: "t" }]));
  const [answer, question] = found.messages;
  assert.deepEqual([answer.content, answer.toolCalls, answer.cut, answer.error, answer.usage, answer.running], ["", [], { why: "closed" }, null, null, false]);
  assert.deepEqual([question.images, found.settings.sampling, found.settings.effort], [[], { seed: 1 }, ""]);
});

test("messages in a ring are read without one", () => {
  const [found] = fromJson(toJson([{ messages: [{ id: "a", parent: "b", role: "user", content: "1" }, { id: "b", parent: "a", role: "user", content: "2" }], leaf: "b" }]));
  assert.deepEqual(branch(found).map(({ content }) => content), ["1", "2"]);
});

test("as Markdown an answer that was cut says so", () => {
  const text = toMarkdown(spoken());
  assert.match(text, /^# one\?\n\n## System\n\nBe short\./);
  assert.match(text, /\*Cancelled explicitly by you · compute stopped after 1\.9 ms\*/);
  assert.match(text, /Calls `f`:\n\n```json\n\{"x": 1\}\n```/);
  assert.match(text, /````\n```\n````/);
  assert.doesNotMatch(text, /first/);
});

test("the oldest go when there are too many, never the one that is kept", () => {
  const many = Array.from({ length: MAX_KEPT + 2 }, (_, n) => ({ id: n, updated: n, size: 1 }));
  assert.deepEqual(excess(many, 0), [2, 1]);
  assert.deepEqual(excess([{ id: "a", updated: 2, size: MAX_SIZE }, { id: "b", updated: 1, size: 1 }], "a"), ["b"]);
});

test("the storage without a browser's gives copies", async () => {
  const storage = new MemoryStorage();
  const conversation = spoken();
  await storage.put(conversation);
  conversation.title = "other";
  assert.equal((await storage.get(conversation.id)).title, "one?");
  assert.equal(await storage.get("none"), null);
  await storage.clear();
  assert.deepEqual(await storage.list(), []);
});
