// One completion of POST /v1/completions: its text as it comes, and how it ended. Never throws.
import { cancelRequest, errorOf, send } from "../lib/api.js";
import { eventsOf } from "../lib/sse.js";

// An ending: {outcome: "finished" | "cancelled" | "failed" | "left", code, reason, problem, param, usage, timings}
//   cancelled: the server ended it, `code` says why; left: this side hung up.
// `onPiece(text)` is called for each piece; a piece is one token, but for characters that are made of several.
export async function complete(body, { id, headers = {}, signal, onPiece }) {
  try {
    const response = await send("v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Request-Id": id, ...headers },
      body: JSON.stringify(body),
      signal,
    });
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
  // Without [DONE] it is not whole, whatever was said before.
  return { ...ending, outcome: "failed", problem: "the stream ended before the answer did" };
}

function whole(answer, onPiece) {
  const [choice] = answer.choices;
  onPiece(choice.text);
  return { outcome: "finished", reason: choice.finish_reason, usage: answer.usage, timings: answer.timings };
}

// Codes of a cancel (docs of the API: 499, 503, 504); all others are failures.
const CANCELS = new Set(["superseded", "explicit", "deadline", "disconnect", "stalled", "shutdown"]);

function refusal(body, status) {
  const error = body?.error ?? {};
  const problem = error.message ?? `HTTP ${status}`;
  const outcome = CANCELS.has(error.code) ? "cancelled" : "failed";
  return { outcome, code: error.code, problem, param: error.param, usage: body?.usage };
}

// Milliseconds until the computation had stopped; null: nothing of it was running any more, or it cannot be said.
// `hold`: it may overtake the request on its way, which is then cancelled on its arrival.
export async function stop(id) {
  const told = await cancelRequest(id, { hold: 5 }).catch(() => null);
  return told?.outcome === "cancelled" ? told.cancel_latency_ms ?? null : null;
}
