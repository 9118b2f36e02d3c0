// Texts about answers: figures, endings, errors.
import { count, milliseconds, plural } from "../lib/format.js";

const rate = (perSecond) => `${perSecond < 10 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;

// The line before the first token, by the prompt's progress; null if the server has not begun.
export function readingWords(progress) {
  if (progress === null || progress.total === 0) return "Waiting …";
  if (progress.isEncoding) return "Encoding an image …";
  return `Reading the prompt: ${count(progress.done)} of ${plural(progress.total, "token")}`;
}

// [{text, title}]: the line under an answer that is being written, by the server's timings.
export function liveFigures(timings) {
  const n = timings?.predicted_n ?? 0;
  if (n === 0) return [];
  const found = [{ text: plural(n, "token"), title: "tokens so far" }];
  // The time of the first token is the prompt's.
  if (n > 1 && timings.predicted_per_second > 0) found.push({ text: rate(timings.predicted_per_second), title: "since the first token" });
  return found;
}

// [{text, title}]: the line under an answer.
export function figures({ usage, speed }) {
  const found = [];
  const say = (text, title) => found.push({ text, title });
  if (usage) say(plural(usage.completion_tokens, "token"), "tokens of the answer");
  if (speed?.perSecond > 0) say(rate(speed.perSecond), "after the first token");
  if (speed?.first != null) say(`first token after ${milliseconds(speed.first)}`, "from sending to the first token");
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    say(`prompt ${count(usage.prompt_tokens)}${cached > 0 ? `, ${count(cached)} reused` : ""}`, "tokens of the prompt; those reused were not computed again");
  }
  return found;
}

export const ENDS = {
  stopped: "Cancelled explicitly by you",
  cancelled: "Cancelled explicitly elsewhere: by the API, or from another window",
  superseded: "Cut: a newer request took its place",
  deadline: "Cut: the time limit was reached",
  shutdown: "Cut: the server was shut down",
  stalled: "Cut: this page had stopped reading the answer",
  lost: "Cut: the connection was lost",
  closed: "Cut: the page was closed",
  error: "Cut by an error",
};

// Return how an incomplete answer ended; null for a complete one.
export function endWords({ cut, finish, running }) {
  if (running) return "Incomplete: another window is writing this answer";
  if (cut) {
    if (cut.why === "stopped" && cut.phase === "loading") return "Cancelled explicitly by you, before the model was loaded";
    // An answer that was kept by an older page has no latency.
    const when = Number.isFinite(cut.latency) ? ` · compute stopped after ${milliseconds(cut.latency)}` : "";
    return `${cut.byPage ? "Cancelled explicitly by you, in the view Engine" : ENDS[cut.why] ?? ENDS.error}${when}`;
  }
  if (finish === "repetition") return "Cut: the answer repeated itself";
  return finish === "length" ? "Cut: the token limit was reached, or the context is full" : null;
}

// {title, detail}: an error of the API, or of the connection to it.
export function errorWords({ status, code, message }) {
  // A field's name is not changed.
  const detail = /^[a-z]+ /.test(message) ? message.charAt(0).toUpperCase() + message.slice(1) : message;
  if (code === "unreachable") return { title: "The server cannot be reached", detail };
  if (code === "context_length_exceeded") return { title: "This conversation is too long for the model", detail: `${detail}. Delete or shorten messages, or begin a new conversation.` };
  if (status === 401 || status === 403) return { title: "The server wants another API key", detail };
  if (status === 413) return { title: "This is more than the server accepts at once", detail };
  if (status === 429) return { title: "The server is overloaded", detail };
  if (code === "model_not_loaded") return { title: "The model is not loaded", detail };
  if (code === "model_ended") return { title: "The model's process ended", detail };
  if (status === 503) return { title: "The server is not ready", detail };
  if (status === 504 || code === "deadline") return { title: "The time limit was reached", detail };
  if (status >= 500) return { title: "The server failed", detail };
  if (status >= 400) return { title: "The server did not accept this", detail };
  return { title: "The answer was cut by an error", detail };
}

export function day(time, now = Date.now()) {
  const days = Math.round((new Date(now).setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86400000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Last 7 days";
  return days < 30 ? "Last 30 days" : "Older";
}
