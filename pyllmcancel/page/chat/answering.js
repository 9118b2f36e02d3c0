// One answer: sends its request, or takes up the stream of one that was sent before; follows the stream, and stops it.
import { call, errorOf, hasCancelled, posted, send } from "../lib/api.js";
import { Observable } from "../lib/observable.js";
import { eventsOf } from "../lib/sse.js";
import { Draft, isCancelled, messageOf } from "./draft.js";

const REDRAW = 100; // milliseconds between two drawings of a draft
const SAVE = 3000; // between two savings
const PATIENCE = 5; // seconds in which a cancel must have worked; after that the connection is closed
const KEEP = 10; // seconds for which an answer goes on without a page: long enough for a reload
const TRIES = 20, PAUSE = 500; // to take up a stream that has not begun; milliseconds between two
const GRACE = 1000; // milliseconds from the cancel to the end of the stream, and for what is asked after it

export class Answering {
  // Notified when the answer is to be drawn again.
  draft;
  isStopping = false;

  requestId;
  // True if there is no stream that could be taken up: it has been kept long enough, or its server has ended.
  isGone = false;

  #takesUp;
  #controller = new AbortController();
  #session;
  #body;
  #onSave;
  #stop = null; // the promise of the server's answer to the cancel
  #redrawing = null;
  #saved = performance.now();
  #slow = 0; // milliseconds of the last drawing
  #ended = Promise.withResolvers();

  // `onSave` is called now and then with the answer so far. `takeUp` is the id of a request that was sent before.
  constructor({ session, model = "", body = null, prefix = "", reasoning = "", takeUp = null, onSave }) {
    this.requestId = takeUp ?? `chat-${crypto.randomUUID()}`;
    this.#takesUp = takeUp !== null;
    this.#session = session;
    this.model = model; // the name of the model that answers; "" for the default
    this.#body = body;
    this.#onSave = onSave;
    this.draft = new Observable(new Draft(prefix, reasoning, { isTakenUp: this.#takesUp }));
  }

  // Resolves with the message's fields when the answer has ended, in any way.
  async run() {
    const draft = this.draft.value;
    draft.times.sent = performance.now();
    try {
      await this.#read(draft);
    } catch (error) {
      this.#failed(draft, error);
    }
    clearTimeout(this.#redrawing);
    this.#ended.resolve();
    const stop = this.#stop === null ? null : await this.#stop;
    const seen = stop === null && isCancelled(draft) ? await this.#seen() : null;
    return messageOf(draft, stop, seen, hasCancelled(this.requestId, this.#session));
  }

  // Return the request's entry, which has the cancel latency; null if it cannot be had soon.
  #seen() { return call(`v1/requests/${encodeURIComponent(this.requestId)}`, { signal: AbortSignal.timeout(GRACE) }).catch(() => null); }

  // Ask the server to stop computing, which ends the answer. Idempotent.
  stop() {
    if (this.#stop !== null) return;
    this.isStopping = true;
    this.draft.changed();
    this.#stop = this.#cancel();
  }

  async #cancel() {
    const late = setTimeout(() => this.#controller.abort(), 1000 * PATIENCE);
    try {
      // With a hold: the request may still be on its way, and the cancel must not be lost by overtaking it.
      const said = await call(`v1/requests/${encodeURIComponent(this.requestId)}/cancel?hold=${PATIENCE}`, { method: "POST", signal: this.#controller.signal });
      // The stream's end is on its way, but a proxy may delay it.
      if (said.outcome !== "held") setTimeout(() => this.#controller.abort(), GRACE);
      return said;
    } catch {
      this.#controller.abort();
      return {};
    } finally {
      this.#ended.promise.then(() => clearTimeout(late));
    }
  }

  #ask(body) {
    const headers = { "X-Session-Id": this.#session, "X-Request-Id": this.requestId };
    return send("v1/chat/completions", { ...posted(body, headers), signal: this.#controller.signal });
  }

  async #begin() {
    const response = await this.#ask({ ...this.#body, keep_going: KEEP });
    if (response.status !== 400) return response;
    const error = await errorOf(response);
    if (error.body?.error?.param !== "keep_going") throw error;
    return this.#ask(this.#body); // this server keeps no streams
  }

  // Read the stream again, from its beginning.
  async #takeUp() {
    for (let tries = 1; ; tries += 1) {
      const response = await send(`v1/stream/${encodeURIComponent(this.requestId)}`, { signal: this.#controller.signal });
      if (response.status !== 503 || tries === TRIES) return response;
      await response.body?.cancel();
      await new Promise((done) => { setTimeout(done, PAUSE); });
    }
  }

  async #read(draft) {
    this.isGone = this.#takesUp;
    const response = await (this.#takesUp ? this.#takeUp() : this.#begin());
    if (!response.ok) throw await errorOf(response);
    this.isGone = false;
    for await (const { data } of eventsOf(response.body)) {
      draft.take(data, performance.now());
      this.#changed();
      if (draft.isDone) break;
    }
  }

  #failed(draft, error) {
    if (draft.error !== null || draft.isDone) return;
    if (error.status) draft.fail(error, error.status);
    else if (error.name !== "AbortError") {
      const begun = draft.times.first !== null || draft.progress !== null;
      // fetch throws nothing but a TypeError if the server cannot be reached.
      if (!begun) draft.fail({ code: "unreachable", message: error.message }, null);
    }
  }

  // At most one drawing per REDRAW. A slow drawing makes the next ones rarer, so that the page stays responsive.
  #changed() {
    this.#redrawing ??= setTimeout(() => {
      const began = performance.now();
      this.draft.changed();
      requestAnimationFrame(() => { this.#slow = performance.now() - began; });
      this.#redrawing = null;
    }, Math.max(REDRAW, 4 * this.#slow));
    if (performance.now() - this.#saved < SAVE) return;
    this.#saved = performance.now();
    const { content, reasoning } = this.draft.value;
    this.#onSave({ content, reasoning });
  }
}
