// A conversation: a tree of messages, one branch of which is shown. An edit or another answer is a new branch.

import { withFiles } from "./attachments.js";

const TITLE_LENGTH = 60;

export const newId = () => crypto.randomUUID();

export const NO_SETTINGS = Object.freeze({ system: "", model: "", sampling: {}, stop: "", tools: "", effort: "" });

export function newConversation(settings = NO_SETTINGS, now = Date.now()) {
  return { id: newId(), title: "", named: false, created: now, updated: now, settings: { ...NO_SETTINGS, ...settings }, messages: [], leaf: null };
}

export const find = (conversation, id) => conversation.messages.find((message) => message.id === id) ?? null;

// The messages that are shown, from the first to the leaf.
export function branch(conversation, leaf = conversation.leaf) {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const path = [];
  for (let at = byId.get(leaf); at !== undefined && path.length <= byId.size; at = byId.get(at.parent)) path.push(at);
  return path.reverse();
}

export const siblings = (conversation, message) => conversation.messages.filter((other) => other.parent === message.parent);

// Add a message under `parent` (an id, or null), which becomes the leaf.
export function add(conversation, parent, fields) {
  const message = { id: newId(), parent, at: Date.now(), content: "", ...fields };
  conversation.messages.push(message);
  conversation.leaf = message.id;
  conversation.updated = message.at;
  if (!conversation.named && parent === null && message.role === "user") conversation.title = titleOf(message.content || (message.files?.[0]?.name ?? ""));
  return message;
}

export function replace(conversation, id, fields) {
  const at = conversation.messages.findIndex((message) => message.id === id);
  if (at === -1) return null;
  conversation.messages[at] = { ...conversation.messages[at], ...fields };
  conversation.updated = Date.now();
  return conversation.messages[at];
}

// Show the branch through `id`, down to its last message.
export function select(conversation, id) {
  let leaf = id;
  for (;;) {
    const children = conversation.messages.filter((message) => message.parent === leaf);
    if (children.length === 0) break;
    leaf = children.at(-1).id;
  }
  conversation.leaf = leaf;
}

// Remove a message and all messages after it; another branch is shown if there is one.
export function remove(conversation, id) {
  const gone = find(conversation, id);
  if (gone === null) return;
  const doomed = new Set([id]);
  for (const message of conversation.messages) if (doomed.has(message.parent)) doomed.add(message.id);
  conversation.messages = conversation.messages.filter((message) => !doomed.has(message.id));
  const rest = siblings(conversation, gone);
  if (rest.length > 0) select(conversation, rest.at(-1).id);
  else conversation.leaf = gone.parent;
  conversation.updated = Date.now();
}

export function titleOf(text) {
  const marks = /^[#>\s]+|\*\*|`/g; // of Markdown
  const line = text.trim().split("\n", 1)[0].replace(marks, "").replace(/\s+/g, " ");
  return line.length <= TITLE_LENGTH ? line : `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…`;
}

// Return the messages to send for an answer after `leaf`. If `leaf` is an answer itself, the model continues its text.
export function requestMessages(conversation, leaf) {
  const messages = branch(conversation, leaf).map((message) => WIRE[message.role](message)).filter((message) => message !== null);
  const { system } = conversation.settings;
  return system.trim() === "" ? messages : [{ role: "system", content: system }, ...messages];
}

const WIRE = {
  tool: ({ toolCallId, content }) => ({ role: "tool", tool_call_id: toolCallId, content }),
  user: (message) => ({ role: "user", content: parts(message) }),
  assistant: wireAnswer,
};

function parts({ images = [], ...message }) {
  const content = withFiles(message);
  if (images.length === 0) return content;
  const pictures = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return content === "" ? pictures : [{ type: "text", text: content }, ...pictures];
}

function wireAnswer({ content, reasoning = "", toolCalls = [] }) {
  // An answer that failed before its first token is not sent to the model.
  if (content === "" && toolCalls.length === 0) return null;
  const answer = { role: "assistant", content };
  if (toolCalls.length > 0) {
    answer.tool_calls = toolCalls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    // Models that call tools continue their reasoning after the result.
    if (reasoning !== "") answer.reasoning_content = reasoning;
  }
  return answer;
}

// Return the calls of the last answer that have no result yet.
export function openCalls(conversation) {
  const path = branch(conversation);
  const answered = new Set(path.map((message) => message.toolCallId));
  const asking = path.findLast((message) => message.role === "assistant");
  return (asking?.toolCalls ?? []).filter((toolCall) => !answered.has(toolCall.id));
}
