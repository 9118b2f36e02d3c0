// A plain completion: a prompt, a few settings, an answer that can be stopped.
import { useModel } from "../engine/use_model.js";
import { count, FINISHES, milliseconds, plural, REASONS } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Observable } from "../lib/observable.js";
import { complete, stop } from "./completing.js";

const PROMPT = "def read_settings(path):\n    \"\"\"Read";
let numbered = 0;
const page = crypto.getRandomValues(new Uint32Array(1))[0].toString(36);

export function Completion() {
  const current = useRef(new Observable(null)).current; // {id, text, tokens, askedAt, firstAt, endedAt, ending, isStopped, latency}, changed in place
  const [other, setOther] = useState(null); // {last, before}: the last complete run, and one of the same prompt that differs in drafts
  useModel(current, 50);
  const run = current.value;
  const compared = other?.last.id === run?.id ? other?.before ?? null : null;
  const isOpen = run !== null && run.endedAt === null;

  const submit = async (event) => {
    event.preventDefault();
    if (isOpen) return;
    const form = new FormData(event.target);
    const body = bodyOf(form);
    const mine = { body, id: `complete-${page}-${numbered += 1}`, text: "", tokens: 0, askedAt: performance.now(), firstAt: null, endedAt: null, ending: null, controller: new AbortController() };
    current.set(mine);
    const onPiece = (text) => { mine.text += text; mine.tokens += 1; mine.firstAt ??= performance.now(); current.changed(); };
    mine.ending = await complete(body, { id: mine.id, signal: mine.controller.signal, onPiece });
    mine.endedAt = performance.now();
    if (mine.ending.outcome === "finished") setOther((before) => otherOf(before, mine));
    current.changed();
  };
  const halt = async () => {
    if (!isOpen) return;
    run.isStopped = true;
    run.latency = await stop(run.id);
    current.changed();
  };
  // The view is closed: the server notices that its client has left.
  useEffect(() => () => current.value?.controller.abort(), []);
  const escape = (event) => { if (event.key === "Escape" && isOpen) { event.preventDefault(); halt(); } };
  const wrong = run?.ending?.outcome === "failed" ? run.ending : null;
  const invalid = (name) => (wrong?.param === name ? { "aria-invalid": "true", "aria-errormessage": "complete-problem" } : {});
  return html`
    <section class="card try-complete" aria-labelledby="complete-title" onKeyDown=${escape}>
      <h2 id="complete-title">Completion</h2>
      <p class="dim">One <code>POST /v1/completions</code>. Conversations are in <a href="#chat">Chat</a>.</p>
      <div class="try-sides">
        <form onSubmit=${submit}>
          <label for="complete-prompt">Prompt</label>
          <textarea id="complete-prompt" class="mono" name="prompt" rows="6" required spellcheck=${false} defaultValue=${PROMPT} ...${invalid("prompt")}></textarea>
          <div class="row">
            <label>Token limit <input name="max_tokens" type="number" inputmode="numeric" min="1" required defaultValue="256" ...${invalid("max_tokens")} /></label>
            <label>Temperature <input name="temperature" type="number" inputmode="decimal" min="0" max="2" step="0.1" required defaultValue="0.6" ...${invalid("temperature")} /></label>
            <label class="try-check"><input name="stream" type="checkbox" defaultChecked /> as a stream</label>
            <label class="try-check" title="Tokens that are guessed, and computed several at a time. The answer is the same."><input name="drafts" type="checkbox" defaultChecked /> with drafts</label>
          </div>
          <div class="row">
            <button class="primary" type="submit" aria-disabled=${isOpen}>Complete</button>
            <button class="danger" type="button" aria-disabled=${!isOpen} onClick=${halt}>Stop</button>
          </div>
        </form>
        <div class="try-answer">
          <h3 id="answer-title">Answer</h3>
          <pre tabindex="0" aria-labelledby="answer-title">${run?.text || html`<span class="dim">${isOpen ? "…" : "Nothing yet."}</span>`}</pre>
          ${wrong && html`<p class="try-problem" id="complete-problem" role="alert">${wrong.problem}${wrong.param ? html` <span class="dim">(${wrong.param})</span>` : ""}</p>`}
          <p class="num dim" role=${isOpen ? undefined : "status"}>${run === null ? "" : summary(run)}</p>
          ${compared !== null && html`<p class="num dim">${isDrafted(compared.body) ? "With" : "Without"} drafts: ${summary(compared)}</p>`}
        </div>
      </div>
    </section>`;
}

function bodyOf(form) {
  const drafts = form.get("drafts") === null ? { "speculative.n_max": 0 } : {};
  return {
    prompt: form.get("prompt"), max_tokens: Number(form.get("max_tokens")), temperature: Number(form.get("temperature")), stream: form.get("stream") !== null, ...drafts,
  };
}

const isDrafted = (body) => body["speculative.n_max"] !== 0;

// Return {last, before} after a run: `before` is the last run that had the same body but for drafts.
function otherOf(known, run) {
  const alike = (one) => one !== null && JSON.stringify({ ...one.body, "speculative.n_max": 0 }) === JSON.stringify({ ...run.body, "speculative.n_max": 0 });
  const before = [known?.last ?? null, known?.before ?? null].find((one) => alike(one) && isDrafted(one.body) !== isDrafted(run.body));
  return { last: run, before: before ?? null };
}

function summary({ tokens, askedAt, firstAt, endedAt, ending, isStopped, latency }) {
  const parts = [];
  const generated = ending?.usage?.completion_tokens ?? tokens;
  if (generated > 0) parts.push(plural(generated, "token"));
  const rate = ending?.timings?.predicted_per_second ?? (firstAt === null ? null : 1000 * tokens / ((endedAt ?? performance.now()) - firstAt));
  const { draft_n: drafted = 0, draft_n_accepted: accepted = 0 } = ending?.timings ?? {};
  const isKnown = accepted > 0 && accepted >= generated; // nothing was computed, so there is no speed
  if (generated > 1 && !isKnown && Number.isFinite(rate)) parts.push(`${count(Math.round(rate))} tokens/s`);
  if (firstAt !== null) parts.push(`first text after ${milliseconds(firstAt - askedAt)}`);
  if (ending?.outcome === "finished") parts.push(`all of it after ${milliseconds(endedAt - askedAt)}`);
  if (drafted > 0) parts.push(`${count(accepted)} of ${plural(drafted, "drafted token")} accepted`);
  if (ending?.outcome === "finished") parts.push(`ended: ${FINISHES[ending.reason] ?? ending.reason}`);
  if (ending?.outcome === "cancelled") parts.push(`${REASONS[ending.code]}${ending.code !== "explicit" ? "" : isStopped ? " by you" : " elsewhere"}`);
  if (typeof latency === "number") parts.push(`compute stopped after ${milliseconds(latency)}`);
  return parts.join(" · ");
}
