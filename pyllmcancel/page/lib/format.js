// Numbers and endings in a readable form.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? "–" : n >= 100_000 ? short.format(n) : whole.format(Math.round(n)));
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// Three significant digits: 0.42 ms, 1.9 ms, 12 ms, 1.2 s, 3 min 5 s.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const ms = seconds * 1000;
  if (ms < 0.05) return ms <= 0 ? "0 ms" : "<0.1 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export const milliseconds = (ms) => (ms === null || ms === undefined ? "–" : duration(ms / 1000));

const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const timeOfDay = (t) => clock.format(new Date(1000 * t));

// The beginning and the end of a long name, since ids may differ in either.
export const shorten = (text, most = 24) => {
  const letters = [...text];
  if (letters.length <= most) return text;
  const end = Math.floor((most - 1) / 3);
  return `${letters.slice(0, most - 1 - end).join("")}…${letters.slice(-end).join("")}`;
};

// The reasons of a cancel, by their codes in the API (499, 503, 504).
export const REASONS = {
  disconnect: "client left", stalled: "client stopped reading", explicit: "cancelled explicitly", deadline: "deadline passed", shutdown: "server shut down",
  superseded: "superseded",
};
export const FINISHES = { stop: "complete", length: "token limit reached" };

// Return why a request ended, or is about to.
export function why(entry) {
  if (entry.lost === "restarted") return "the server restarted";
  if (entry.lost === "loaded") return "its model is loaded";
  if (entry.lost === "left") return "left before its model was loaded";
  if (entry.lost === "lost") return "ended while the feed was lost";
  if (entry.superseded_by) return `superseded by ${shorten(entry.superseded_by, 16)}`;
  if (entry.cancel_reason !== null && entry.status !== "finished") return REASONS[entry.cancel_reason] ?? entry.cancel_reason;
  if (entry.status === "error") return entry.error ?? "failed";
  return FINISHES[entry.finish_reason] ?? entry.finish_reason ?? "";
}

export const hasLatency = (entry) => entry.cancel_latency_ms !== null && entry.status === "cancelled";

// Return how fast the computation stopped; "" for a request that was not cancelled.
export function howFast(entry) {
  if (!hasLatency(entry)) return "";
  const waited = entry.t.admitted === null ? "left the queue" : "compute stopped";
  return `${waited} after ${milliseconds(entry.cancel_latency_ms)}`;
}

export const ending = (entry) => [why(entry), howFast(entry)].filter((text) => text !== "").join(", ");

// Return the request's status in one word, which is also a badge's class.
export function state(entry) {
  if (entry.phase === "loading") return "loading";
  if (entry.status === "running") return entry.paused ? "paused" : entry.phase === "decode" ? "decode" : "prefill";
  return entry.status;
}

// As the command line has them: 4.7 GB.
export function bytes(n) {
  const units = ["kB", "MB", "GB"];
  if (n < 1000) return `${n} B`;
  const power = Math.min(3, Math.floor(Math.log10(n) / 3));
  return `${(n / 1000 ** power).toFixed(1)} ${units[power - 1]}`;
}
