// The models of a server that has several, as the event `models` lists them (docs/events.md).
import { call, posted } from "./api.js";

export const loadModel = (id) => call("models/load", posted({ model: id }));
// It also ends a load.
export const unloadModel = (id) => call("models/unload", posted({ model: id }));

// Return the model of a name, which may be an alias, or "" for the default; null if there is none.
export function modelOf(served, name) {
  const isIt = name === "" ? (one) => one.default : (one) => one.id === name || one.aliases.includes(name);
  return served?.models.find(isIt) ?? null;
}

// Return a model's state in one word, which is also a badge's class.
export function stateOf({ status }) {
  if (status.failed) return "failed";
  return status.value === "loaded" ? "ready" : status.value;
}

const STAGES = { waiting: "waiting for room", downloading: "downloading", loading: "loading" };

// Return a model's state in words, with the share of its load.
export function stateWords(model) {
  const state = stateOf(model);
  const { stage, progress, reason } = model.status;
  if (state !== "loading") return state === "unloaded" ? "not loaded" : state;
  const share = progress === null || progress === undefined ? "" : ` ${Math.round(100 * progress)} %`;
  return `${STAGES[stage] ?? "loading"}${share}${reason ? `: ${reason}` : ""}`;
}
