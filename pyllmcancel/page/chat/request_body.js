// The body of a request, made of a conversation's settings. Empty settings are left to the server.
import { requestMessages } from "./conversation.js";

// Numbers that may be set; `of` is the name under which /props reports the server's default.
export const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05, hint: "0: always the likeliest token" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, hint: "the likeliest tokens that make up this probability" },
  { name: "top_k", label: "Top k", min: 0, max: 100000, step: 1, hint: "number of the likeliest tokens to choose from; 0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "minimum probability, relative to the likeliest token's" },
  { name: "max_tokens", label: "Token limit", min: 1, max: 10000000, step: 1, hint: "limit of one answer's tokens" },
  { name: "seed", label: "Seed", min: 0, max: 4294967294, step: 1, hint: "the same seed gives the same answer" },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0, max: 5, step: 0.05, hint: "1: none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "0: none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "0: none" },
];

export const EFFORTS = ["none", "low", "medium", "high"];

// The value in `default_generation_settings.params` of /props; "" if the server has no such number.
export function defaultOf(params, name) {
  const value = params?.[name];
  if (typeof value !== "number") return "";
  if (name === "max_tokens" && value < 0) return "no limit";
  if (name === "seed") return "a new one each time";
  return String(Number(value.toPrecision(6)));
}

// `isSingle`: the server has one model, and need not know the name of the conversation's model, which another one had.
export function requestBody(conversation, leaf, { isSingle = false } = {}) {
  const { settings } = conversation;
  const body = { messages: requestMessages(conversation, leaf), stream: true, stream_options: { include_usage: true }, return_progress: true, timings_per_token: true, repetition_limit: true };
  if (settings.model !== "" && !isSingle) body.model = settings.model;
  for (const { name } of FIELDS) if (typeof settings.sampling[name] === "number") body[name] = settings.sampling[name];
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) body.stop = stop;
  if (settings.effort !== "") body.reasoning_effort = settings.effort;
  const { tools } = readTools(settings.tools);
  if (tools !== null) body.tools = tools;
  return body;
}

// {tools, problem} of the text in the settings. A function is accepted with or without a tool around it.
export function readTools(text) {
  if (text.trim() === "") return { tools: null, problem: null };
  let read;
  try {
    read = JSON.parse(text);
  } catch (error) {
    return { tools: null, problem: `This is not JSON: ${error.message}` };
  }
  const list = (Array.isArray(read) ? read : [read]).map((one) => (one !== null && typeof one === "object" && "name" in one ? { type: "function", function: one } : one));
  const wrong = list.find((one) => typeof one?.function?.name !== "string");
  if (wrong !== undefined) return { tools: null, problem: "A tool is an object with a function that has a name." };
  return { tools: list.length === 0 ? null : list, problem: null };
}
