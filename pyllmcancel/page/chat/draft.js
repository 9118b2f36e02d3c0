// An unfinished answer: the sum of the events of its stream.
import { REASONS } from "../lib/format.js";
import { Observable } from "../lib/observable.js";

export const NO_DRAFT = new Observable(null);

export class Draft {
  // `prefix` is the answer that the model continues, if it continues one.
  // `isTakenUp` is true if the stream began before, so that the times of its events say nothing.
  constructor(prefix = "", reasoning = "", { isTakenUp = false } = {}) {
    this.isTakenUp = isTakenUp;
    this.content = prefix;
    this.reasoning = reasoning;
    this.toolCalls = [];
    this.progress = null; // of the prompt: {done, total, cached, isEncoding}
    this.finish = null;
    this.usage = null;
    this.timings = null;
    this.model = null;
    this.error = null; // {status, code, message}
    this.isDone = false; // true if the stream said so itself
    this.times = { sent: null, first: null, last: null, thought: null }; // milliseconds
  }

  // Take the data of one event, and the time when it came. Throws if the data are not JSON.
  take(data, now) {
    if (data === "[DONE]") {
      this.isDone = true;
      return;
    }
    const event = JSON.parse(data);
    if (event.usage) this.usage = event.usage;
    if (event.timings) this.timings = event.timings;
    if (event.model) this.model = event.model;
    if (event.error) this.fail(event.error, null);
    if (event.prompt_progress) this.#progressed(event.prompt_progress);
    for (const choice of event.choices ?? []) if ((choice.index ?? 0) === 0) this.#choice(choice, now);
  }

  fail({ message, code = null }, status) {
    this.error = { status, code, message: String(message ?? "the server gave no reason") };
  }

  #progressed({ total, processed, cache = 0, encoding = false }) {
    this.progress = { done: processed, total, cached: cache, isEncoding: encoding };
  }

  #choice({ delta = {}, finish_reason: finish, stop_details: details }, now) {
    const { content, tool_calls: calls } = delta;
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (content || thought || calls) this.#token(now);
    if (thought) this.reasoning += thought;
    if (content || calls) this.times.thought ??= this.reasoning === "" ? null : now;
    if (content) this.content += content;
    for (const call of calls ?? []) this.#call(call);
    if (finish) this.finish = details ?? finish;
  }

  #token(now) {
    this.times.first ??= now;
    this.times.last = now;
  }

  // A piece of a call. The first one has the name, the following ones have parts of the arguments.
  #call({ index, id, function: called = {} }) {
    const at = index ?? this.toolCalls.length;
    const known = this.toolCalls[at] ?? { id: "", name: "", arguments: "" };
    const whole = { id: id ?? known.id, name: known.name + (called.name ?? ""), arguments: known.arguments + (called.arguments ?? "") };
    this.toolCalls = Object.assign([...this.toolCalls], { [at]: whole });
  }
}

const WHY = { explicit: "cancelled", disconnect: "lost" }; // of the other reasons the code

// Return why an answer is incomplete: {why, latency, phase, byPage}; null if it is complete.
//
// stop    the server's answer to this answer's own stop; {} if there was none; null: the answer was not stopped here.
// seen    the request's entry after its end, if it was cancelled by anything else; null: unknown.
// byPage  whether this page has cancelled it from another view.
export function cutOf(draft, stop, seen = null, byPage = false) {
  const { error } = draft;
  if (draft.finish !== null && error === null) return null;
  const code = error?.code ?? null;
  if (stop !== null && (error === null || (stop.outcome !== "already_finished" && [null, "explicit"].includes(code)))) return cut("stopped", stop);
  if (error === null) return cut("lost", null);
  return { ...cut(isCancelled(draft) ? WHY[code] ?? code : "error", seen ?? stop), ...(code === "explicit" && byPage ? { byPage } : {}) };
}

// True if somebody has cancelled the answer.
export const isCancelled = ({ error }) => error !== null && Object.hasOwn(REASONS, error.code ?? "");

const cut = (why, told) => ({ why, latency: told?.cancel_latency_ms ?? null, phase: told?.phase ?? null });

// Return the fields of a draft that its message keeps.
export function messageOf(draft, stop, seen = null, byPage = false) {
  const { content, reasoning, toolCalls, finish, usage, model, error } = draft;
  const cut = cutOf(draft, stop, seen, byPage);
  const given = cut?.why === "error" || cut?.why === "lost" ? error : null;
  return { content, reasoning, toolCalls: toolCalls.filter(Boolean), finish, usage, model, error: given, cut, speed: speedOf(draft), running: false };
}

// {first, thought: ms, perSecond}: by the server's timings if it sends them, else as measured here.
export function speedOf({ times, timings, usage, isTakenUp = false }) {
  if (isTakenUp) return { first: null, thought: null, perSecond: timings?.predicted_per_second ?? null };
  const first = times.first === null ? null : times.first - times.sent;
  const thought = times.thought === null ? null : times.thought - times.first;
  let perSecond = timings?.predicted_per_second ?? null;
  const n = usage?.completion_tokens ?? 0;
  if (perSecond === null && n > 1 && times.last > times.first) perSecond = (1000 * (n - 1)) / (times.last - times.first);
  return { first, thought, perSecond };
}
