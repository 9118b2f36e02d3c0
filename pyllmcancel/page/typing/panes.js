// The two panes of the view, with this page's network and clock.
import { call } from "../lib/api.js";
import { complete, stop } from "./completing.js";
import { beginOf, endOf } from "./ghost.js";
import { Pane } from "./pane.js";
import { paceOf, Size } from "./size.js";

const TEMPERATURE = 0.3;
export const size = new Size();

// Grey text that grows at every frame is motion: people who prefer less of it get larger pieces.
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const frame = (draw) => (calm.matches ? setTimeout(draw, 400) : requestAnimationFrame(draw));

export const alarm = (ring, delay) => {
  const number = setTimeout(ring, delay);
  return () => clearTimeout(number);
};

// Keys of this page only: another page's keys supersede nothing here.
const page = `try-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;

// Measure the model with the text that is to be completed: the first request computes the text, the second one only its
// last letters, as at each key. Return the pace of the keys.
export async function measure(text, signal) {
  let latency = null;
  size.forget();
  for (const last of ["", "w"]) {
    const began = performance.now();
    latency = null;
    const onPiece = () => { latency ??= performance.now() - began; };
    const body = { prompt: endOf(text + last), max_tokens: 16, ignore_eos: true, temperature: TEMPERATURE, stream: true };
    size.learn(await complete(body, { id: `${page}-speed${last}`, headers: { "X-Session-Id": page }, signal, onPiece }));
  }
  return (size.pace = paceOf(latency ?? 0));
}

function paneOf(word, supersedes) {
  const name = `${page}-${word}`;
  const headers = { "X-Session-Id": name, ...(supersedes ? { "X-Supersede": name } : {}) };
  const ask = async ({ id, place }, { signal, onPiece }) => {
    const body = {
      prompt: endOf(place.before), max_tokens: size.tokens, ignore_eos: true,
      temperature: TEMPERATURE, stream: true,
    };
    if (place.after.trim() !== "") body.suffix = beginOf(place.after);
    const ending = await complete(body, { id, headers, signal, onPiece });
    size.learn(ending);
    return ending;
  };
  return new Pane({
    name, supersedes, ask, alarm, stopOne: stop, stopAll: () => stopSession(name),
    now: () => performance.now(), frame,
  });
}

// `latency`: the time until the last one had stopped; null: none was running.
async function stopSession(name) {
  const told = await call(`v1/sessions/${encodeURIComponent(name)}/cancel`, { method: "POST" }).catch(() => null);
  const cancelled = (told?.requests ?? []).filter((request) => request.outcome === "cancelled");
  const latencies = cancelled.map((request) => request.cancel_latency_ms).filter((latency) => typeof latency === "number");
  return { latency: latencies.length === 0 ? null : Math.max(...latencies), reached: cancelled.map(({ id }) => id) };
}

export const isOurs = ({ id }) => id.startsWith(page);

export const makePanes = () => [paneOf("with", true), paneOf("without", false)];
