// One completion by POST /v1/completions: its text so far, and how it ended. Never throws.
import { cancelRequest, errorOf, posted, send } from "../lib/api.js";
import { REASONS } from "../lib/format.js";
import { eventsOf } from "../lib/sse.js";

// An ending: {outcome: "finished" | "cancelled" | "failed" | "left", code, reason, problem, param, usage, timings}
//   cancelled: the server ended it, `code` says why; left: this side hung up.
// `onPiece(text)` is called for each piece; a piece is one token, but for characters that are made of several.
export async function complete(body, { id, headers = {}, signal, onPiece }) {
  try {
    const response = await send("v1/completions", { ...posted(body, { "X-Request-Id": id, ...headers }), signal });
    if (!response.ok) return refusal((await errorOf(response)).body, response.status);
    return body.stream ? await streamed(response, onPiece) : whole(await response.json(), onPiece);
  } catch (error) {
    if (signal?.aborted) return { outcome: "left" };
    return { outcome: "failed", problem: error.message };
  }
}

async function streamed(response, onPiece) {
  const ending = { outcome: "failed", problem: "the stream ended before the answer did" };
  for await (const { data } of eventsOf(response.body)) {
    if (data === "[DONE]") return ending;
    const event = JSON.parse(data);
    if (event.error) return refusal(event, response.status);
    const [choice] = event.choices;
    if (choice?.text) onPiece(choice.text);
    if (choice?.finish_reason) Object.assign(ending, { outcome: "finished", reason: choice.finish_reason, problem: undefined });
    if (event.usage) ending.usage = event.usage;
    if (event.timings) ending.timings = event.timings;
  }
  // Without [DONE] the answer is incomplete, whatever came before.
  return { ...ending, outcome: "failed", problem: "the stream ended before the answer did" };
}

function whole(answer, onPiece) {
  const [choice] = answer.choices;
  onPiece(choice.text);
  return { outcome: "finished", reason: choice.finish_reason, usage: answer.usage, timings: answer.timings };
}

function refusal(body, status) {
  const error = body?.error ?? {};
  const problem = error.message ?? `HTTP ${status}`;
  const outcome = Object.hasOwn(REASONS, error.code) ? "cancelled" : "failed";
  return { outcome, code: error.code, problem, param: error.param, usage: body?.usage };
}

// Return the milliseconds until the computation had stopped; null: nothing was running any more, or the time is
// unknown. `hold`: the cancel may overtake the request, which is then cancelled on its arrival.
export async function stop(id) {
  const told = await cancelRequest(id, { hold: 5 }).catch(() => null);
  return told?.outcome === "cancelled" ? told.cancel_latency_ms ?? null : null;
}
