// Conversations as files. A file that is read is not trusted: each field is checked, or ignored.
import { fenced, fileBlock } from "./attachments.js";
import { branch, newId, NO_SETTINGS, titleOf } from "./conversation.js";
import { EFFORTS, FIELDS } from "./request_body.js";
import { ENDS, endWords } from "./words.js";

export const FORMAT = "pyllmcancel-chats";
export const MAX_FILE = 64 * 2 ** 20; // bytes
const MAX_CONVERSATIONS = 1000, MAX_MESSAGES = 10000;
const IMAGE = /^data:image\/(png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=]+$/;

export const toJson = (conversations) => JSON.stringify({ format: FORMAT, version: 1, exported: new Date().toISOString(), conversations }, null, 1);

// The branch that is shown.
export function toMarkdown(conversation) {
  const pieces = [`# ${conversation.title || "Conversation"}`];
  if (conversation.settings.system.trim() !== "") pieces.push("## System", conversation.settings.system);
  for (const message of branch(conversation)) pieces.push(...markdownOf(message));
  return `${pieces.join("\n\n")}\n`;
}

const HEADINGS = { user: "You", assistant: "Assistant", tool: "Tool's result" };

function markdownOf(message) {
  const pieces = [`## ${HEADINGS[message.role]}`];
  if (message.reasoning) pieces.push("<details><summary>Reasoning</summary>", message.reasoning, "</details>");
  pieces.push(...(message.files ?? []).map(fileBlock));
  if (message.content !== "") pieces.push(message.role === "tool" ? fenced(message.content, "") : message.content);
  for (const url of message.images ?? []) pieces.push(`![image](${url})`);
  for (const { name, arguments: text } of message.toolCalls ?? []) pieces.push(`Calls \`${name}\`:`, fenced(text, "json"));
  const end = message.role === "assistant" ? endWords(message) : null;
  if (end !== null) pieces.push(`*${end}*`);
  return pieces;
}

// Return the conversations in a file: ours, or a list of messages in the API's format. Throws an Error that says what
// is wrong.
export function fromJson(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("this file is not JSON");
  }
  const list = read?.format === FORMAT && Array.isArray(read.conversations) ? read.conversations.map(conversationOf) : [plain(read)];
  const found = list.filter((conversation) => conversation !== null && conversation.messages.length > 0);
  if (found.length === 0) throw new Error("this file contains no conversation");
  if (found.length > MAX_CONVERSATIONS) throw new Error(`this file contains more than ${MAX_CONVERSATIONS} conversations`);
  return found;
}

const string = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) && value > 0 ? value : Date.now());

function conversationOf(raw) {
  if (raw === null || typeof raw !== "object" || !Array.isArray(raw.messages)) return null;
  // The ids are new: conversations that are read are added, and never replace those that are here.
  const ids = new Map();
  const messages = [];
  for (const one of raw.messages.slice(0, MAX_MESSAGES)) {
    const message = messageOf(one);
    if (message === null) continue;
    // Parents come before their children, so that no cycle can be read.
    message.parent = ids.get(one.parent) ?? null;
    if (typeof one.id === "string") ids.set(one.id, message.id);
    messages.push(message);
  }
  const leaf = ids.get(raw.leaf) ?? messages.at(-1)?.id ?? null;
  const title = string(raw.title).slice(0, 200) || titleOf(messages[0]?.content ?? "");
  return { id: newId(), title, named: raw.named === true, created: time(raw.created), updated: time(raw.updated), settings: settingsOf(raw.settings), messages, leaf };
}

// [{role, content}], alone or as `messages` of a request.
function plain(read) {
  const given = Array.isArray(read) ? read : read?.messages;
  if (!Array.isArray(given)) throw new Error("this file contains no conversations");
  const list = given.filter((one) => one !== null && typeof one === "object");
  const system = list.filter((one) => one.role === "system").map((one) => string(one.content)).join("\n\n");
  const chained = list.map((one, at) => ({ ...one, id: String(at), parent: String(at - 1), toolCalls: callsOf(one), reasoning: one.reasoning_content, toolCallId: one.tool_call_id }));
  let last = null;
  const linked = chained.filter((one) => one.role !== "system").map((one) => {
    const message = { ...one, parent: last };
    if (messageOf(one) !== null) last = one.id;
    return message;
  });
  return conversationOf({ messages: linked, leaf: last, settings: { system } });
}

const callsOf = ({ tool_calls: calls }) => (Array.isArray(calls) ? calls.map((one) => ({ id: one?.id, name: one?.function?.name, arguments: one?.function?.arguments })) : []);

function settingsOf(raw) {
  const sampling = {};
  for (const { name } of FIELDS) if (Number.isFinite(raw?.sampling?.[name])) sampling[name] = raw.sampling[name];
  const effort = EFFORTS.includes(raw?.effort) ? raw.effort : "";
  return { ...NO_SETTINGS, system: string(raw?.system), model: string(raw?.model), stop: string(raw?.stop), tools: string(raw?.tools), effort, sampling };
}

function messageOf(raw) {
  if (!["user", "assistant", "tool"].includes(raw?.role)) return null;
  const message = { id: newId(), parent: null, role: raw.role, at: time(raw.at), content: contentOf(raw.content) };
  if (raw.role === "user" && Array.isArray(raw.images)) message.images = raw.images.filter((url) => typeof url === "string" && IMAGE.test(url));
  if (raw.role === "user" && Array.isArray(raw.files)) message.files = raw.files.map(fileOf).filter((file) => file.text !== "");
  if (raw.role === "tool") message.toolCallId = string(raw.toolCallId);
  return raw.role === "assistant" ? { ...message, ...answerOf(raw) } : message;
}

const fileOf = (raw) => ({ name: string(raw?.name).slice(0, 200) || "file", text: string(raw?.text) });
const contentOf = (content) => (Array.isArray(content) ? content.map((part) => string(part?.text)).join("\n") : string(content));

function answerOf(raw) {
  const toolCalls = (Array.isArray(raw.toolCalls) ? raw.toolCalls : []).map((one) => ({ id: string(one?.id), name: string(one?.name), arguments: string(one?.arguments) }));
  const known = raw.cut !== null && typeof raw.cut === "object" && Object.hasOwn(ENDS, raw.cut.why);
  const cut = known ? { why: raw.cut.why, latency: numberOf(raw.cut.latency), phase: string(raw.cut.phase) || null, ...(raw.cut.byPage === true ? { byPage: true } : {}) } : raw.running === true ? { why: "closed" } : null;
  return { reasoning: string(raw.reasoning), toolCalls, finish: string(raw.finish) || null, cut, error: errorOf(raw.error), usage: usageOf(raw.usage), speed: speedOf(raw.speed), model: string(raw.model) || null, running: false };
}

const numberOf = (value) => (Number.isFinite(value) && value >= 0 ? value : null);
const errorOf = (raw) => (typeof raw?.message === "string" ? { status: numberOf(raw.status), code: string(raw.code) || null, message: raw.message } : null);
const speedOf = (raw) => ({ first: numberOf(raw?.first), thought: numberOf(raw?.thought), perSecond: numberOf(raw?.perSecond) });

function usageOf(raw) {
  if (numberOf(raw?.prompt_tokens) === null || numberOf(raw?.completion_tokens) === null) return null;
  const cached = numberOf(raw.prompt_tokens_details?.cached_tokens) ?? 0;
  return { prompt_tokens: raw.prompt_tokens, completion_tokens: raw.completion_tokens, prompt_tokens_details: { cached_tokens: cached } };
}
