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

  // `onEvent(data)` is called for each event, in order, with its parsed JSON.
  constructor(onEvent) { this.#onEvent = onEvent; }

  // Read the feed as long as the page lives.
  async run() {
    for (let delay = FIRST_DELAY; ; delay = Math.min(2 * delay, LONGEST_DELAY)) {
      try {
        await this.#read(() => { delay = FIRST_DELAY; });
      } catch (error) {
        this.state.set({ name: "lost", problem: error.message });
        delay = Math.max(delay, 1000 * (error.retryAfter ?? 0));
      }
      await new Promise((wake) => { setTimeout(wake, delay); });
    }
  }

  // Throws an Error that says why the feed has ended.
  async #read(onLive) {
    const controller = new AbortController();
    let timer = null;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => controller.abort(new Error(`the feed was silent for ${LONGEST_SILENCE / 1000} s`)), LONGEST_SILENCE);
    };
    try {
      const headers = this.#lastId === "" ? {} : { "Last-Event-ID": this.#lastId };
      const response = await send("v1/events", { headers, signal: controller.signal });
      if (!response.ok) throw await errorOf(response);
      heard(); // not earlier: the key may be asked for before
      onLive();
      this.state.set({ name: "live", problem: null });
      for await (const { id, data } of eventsOf(response.body, heard)) {
        if (id !== "") this.#lastId = id; // set first: an event that cannot be handled is not requested again and again
        this.#onEvent(JSON.parse(data));
      }
      throw new Error("the server closed the feed");
    } finally {
      clearTimeout(timer);
    }
  }
}
