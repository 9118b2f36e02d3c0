// The two panes of the view, with this page's network and clock.
import { call } from "../lib/api.js";
import { complete, stop } from "./completing.js";
import { beginOf, endOf } from "./ghost.js";
import { Pane } from "./pane.js";
import { Size } from "./size.js";

export const settings = { maxTokens: null, temperature: 0.3 }; // maxTokens null: by the speed
const size = new Size();

// Grey text that grows at every frame is motion: people who prefer less of it get larger pieces.
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const frame = (draw) => (calm.matches ? setTimeout(draw, 400) : requestAnimationFrame(draw));

export const alarm = (ring, delay) => {
  const number = setTimeout(ring, delay);
  return () => clearTimeout(number);
};

// Keys of this page only: another page's keys supersede nothing here.
const page = `try-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;

function paneOf(word, supersedes) {
  const name = `${page}-${word}`;
  const headers = { "X-Session-Id": name, ...(supersedes ? { "X-Supersede": name } : {}) };
  const ask = async ({ id, place }, { signal, onPiece }) => {
    const body = {
      prompt: endOf(place.before), max_tokens: settings.maxTokens ?? size.tokens, ignore_eos: true,
      temperature: settings.temperature, stream: true,
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
