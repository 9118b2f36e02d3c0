// The tree of a conversation, and what of it is sent.
import assert from "node:assert/strict";
import { test } from "node:test";
import { add, branch, find, newConversation, openCalls, remove, replace, requestMessages, select, siblings, titleOf } from "../../pyllmcancel/page/chat/conversation.js";
import { readTools, requestBody } from "../../pyllmcancel/page/chat/request_body.js";

const texts = (conversation) => branch(conversation).map(({ content }) => content);

function spoken() {
  const conversation = newConversation();
  const question = add(conversation, null, { role: "user", content: "one?" });
  const answer = add(conversation, question.id, { role: "assistant", content: "1" });
  const second = add(conversation, answer.id, { role: "user", content: "two?" });
  add(conversation, second.id, { role: "assistant", content: "2" });
  return { conversation, question, answer, second };
}

test("an edit is a new branch, and the old one can be gone back to", () => {
  const { conversation, second, answer } = spoken();
  const edited = add(conversation, second.parent, { role: "user", content: "three?" });
  assert.deepEqual(texts(conversation), ["one?", "1", "three?"]);
  assert.deepEqual(siblings(conversation, edited).map(({ content }) => content), ["two?", "three?"]);
  select(conversation, second.id);
  assert.deepEqual(texts(conversation), ["one?", "1", "two?", "2"]);
  assert.equal(siblings(conversation, answer).length, 1);
});

test("a message goes with all that follows, and another branch is shown", () => {
  const { conversation, second, question } = spoken();
  const edited = add(conversation, second.parent, { role: "user", content: "three?" });
  remove(conversation, edited.id);
  assert.deepEqual(texts(conversation), ["one?", "1", "two?", "2"]);
  remove(conversation, second.id);
  assert.deepEqual(texts(conversation), ["one?", "1"]);
  remove(conversation, question.id);
  assert.deepEqual([conversation.messages, conversation.leaf], [[], null]);
});

test("a message is replaced, never altered", () => {
  const { conversation, answer } = spoken();
  replace(conversation, answer.id, { content: "uno" });
  assert.equal(answer.content, "1");
  assert.equal(find(conversation, answer.id).content, "uno");
  assert.equal(replace(conversation, "gone", {}), null);
});

test("the first message names the conversation, until the person does", () => {
  const { conversation } = spoken();
  assert.equal(conversation.title, "one?");
  assert.equal(titleOf(`${"long ".repeat(30)}\nsecond line`).length, 60);
  assert.equal(titleOf("## Compare **two** `things`\nmore"), "Compare two things");
  conversation.named = true;
  add(conversation, null, { role: "user", content: "other" });
  assert.equal(conversation.title, "one?");
});

test("what is sent is the branch, with the system prompt before it", () => {
  const { conversation, second } = spoken();
  conversation.settings.system = "Be short.";
  assert.deepEqual(requestMessages(conversation, second.id), [
    { role: "system", content: "Be short." }, { role: "user", content: "one?" }, { role: "assistant", content: "1" }, { role: "user", content: "two?" },
  ]);
});

test("an answer that never began says nothing to the model; one that was cut says what it said", () => {
  const { conversation } = spoken();
  add(conversation, conversation.leaf, { role: "user", content: "three?" });
  add(conversation, conversation.leaf, { role: "assistant", content: "", error: { message: "no" } });
  assert.equal(requestMessages(conversation, conversation.leaf).at(-1).role, "user");
  add(conversation, branch(conversation).at(-2).id, { role: "assistant", content: "thr", cut: { why: "stopped" } });
  assert.deepEqual(requestMessages(conversation, conversation.leaf).at(-1), { role: "assistant", content: "thr" });
});

test("calls of tools are sent with their results, and those without one are open", () => {
  const { conversation } = spoken();
  const toolCalls = [{ id: "a", name: "f", arguments: "{}" }, { id: "b", name: "g", arguments: "{}" }];
  add(conversation, conversation.leaf, { role: "assistant", reasoning: "hm", toolCalls });
  assert.deepEqual(openCalls(conversation).map(({ id }) => id), ["a", "b"]);
  add(conversation, conversation.leaf, { role: "tool", content: "7", toolCallId: "a" });
  assert.deepEqual(openCalls(conversation).map(({ id }) => id), ["b"]);
  const [answer, result] = requestMessages(conversation, conversation.leaf).slice(-2);
  assert.equal(answer.reasoning_content, "hm");
  assert.deepEqual(answer.tool_calls[0], { id: "a", type: "function", function: { name: "f", arguments: "{}" } });
  assert.deepEqual(result, { role: "tool", tool_call_id: "a", content: "7" });
});

test("images are parts beside the text", () => {
  const conversation = newConversation();
  const question = add(conversation, null, { role: "user", content: "what?", images: ["data:image/png;base64,AA=="] });
  assert.deepEqual(requestMessages(conversation, question.id)[0].content, [
    { type: "text", text: "what?" }, { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } },
  ]);
});

test("text files are fenced before the text, and name a conversation that begins with them alone", () => {
  const conversation = newConversation();
  const files = [{ name: "a.py", text: "x = 1\n" }, { name: "notes", text: "```\nfence\n```" }];
  const question = add(conversation, null, { role: "user", content: "why?", files });
  assert.equal(requestMessages(conversation, question.id)[0].content, "File a.py:\n\n```py\nx = 1\n```\n\nFile notes:\n\n````\n```\nfence\n```\n````\n\nwhy?");
  const alone = newConversation();
  add(alone, null, { role: "user", content: "", files: files.slice(0, 1) });
  assert.equal(alone.title, "a.py");
});

test("a body has what was set, and nothing else", () => {
  const { conversation, second } = spoken();
  assert.deepEqual(Object.keys(requestBody(conversation, second.id)).sort(), ["messages", "repetition_limit", "return_progress", "stream", "stream_options", "timings_per_token"]);
  Object.assign(conversation.settings, { sampling: { temperature: 0, seed: 7 }, stop: "END\n\n;", tools: '{"name": "f"}', effort: "low", model: "m" });
  const body = requestBody(conversation, second.id);
  assert.deepEqual([body.temperature, body.seed, body.stop, body.reasoning_effort, body.model], [0, 7, ["END", ";"], "low", "m"]);
  assert.deepEqual(body.tools, [{ type: "function", function: { name: "f" } }]);
});

test("tools that are none are said to be none", () => {
  assert.deepEqual(readTools("  "), { tools: null, problem: null });
  assert.match(readTools("{").problem, /not JSON/);
  for (const wrong of ["[1]", "[null]", '[{"type": "function"}]', '"x"']) assert.match(readTools(wrong).problem, /function/, wrong);
});
