// The server's feed (docs/events.md): it connects, resumes where it was, and reports when it cannot.
import { errorOf, send } from "./api.js";
import { Observable } from "./observable.js";
import { eventsOf } from "./sse.js";

const FIRST_DELAY = 250, LONGEST_DELAY = 5000; // milliseconds between two tries
const LONGEST_SILENCE = 60_000; // milliseconds without a ping: the machine slept, or a cable was pulled

export class Feed {
  // "connecting", "live" or "lost", with the reason if it is lost.
  state = new Observable({ name: "connecting", problem: null });

  #onEvent;
  #lastId = "";
  #controller = new AbortController();

  // `onEvent(data)` is called for each event, in order, with its parsed JSON.
  constructor(onEvent) { this.#onEvent = onEvent; }

  close() { this.#controller.abort(); }

  async run() {
    const { signal } = this.#controller;
    for (let delay = FIRST_DELAY; !signal.aborted; delay = Math.min(2 * delay, LONGEST_DELAY)) {
      try {
        await this.#read(signal, () => { delay = FIRST_DELAY; });
        this.#lost("the server closed the feed");
      } catch (error) {
        this.#lost(error.message);
        delay = Math.max(delay, 1000 * (error.retryAfter ?? 0));
      }
      await new Promise((wake) => { setTimeout(wake, delay); });
    }
  }

  async #read(signal, onLive) {
    const headers = this.#lastId === "" ? {} : { "Last-Event-ID": this.#lastId };
    const silence = new Silence();
    try {
      await this.#take(await send("v1/events", { headers, signal: AbortSignal.any([signal, silence.signal]) }), onLive, silence);
    } finally {
      silence.end();
    }
  }

  async #take(response, onLive, silence) {
    if (!response.ok) {
      const error = await errorOf(response);
      error.retryAfter = Number(response.headers.get("Retry-After")) || 0;
      throw error;
    }
    silence.broken();
    onLive();
    this.state.set({ name: "live", problem: null });
    for await (const { id, data } of eventsOf(response.body, () => silence.broken())) {
      if (id !== "") this.#lastId = id; // set first: an event that cannot be handled is not requested again and again
      this.#onEvent(JSON.parse(data));
    }
  }

  #lost(problem) {
    if (!this.#controller.signal.aborted) this.state.set({ name: "lost", problem });
  }
}

// Aborts after too long a silence, counted from the first answer: the key may be asked for before.
class Silence {
  #controller = new AbortController();
  #timer = null;

  get signal() { return this.#controller.signal; }

  broken() {
    clearTimeout(this.#timer);
    const problem = new Error(`the feed was silent for ${LONGEST_SILENCE / 1000} s`);
    this.#timer = setTimeout(() => this.#controller.abort(problem), LONGEST_SILENCE);
  }

  end() { clearTimeout(this.#timer); }
}
