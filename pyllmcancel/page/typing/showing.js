// "Type for me": the same keys in the same rhythm, first with superseding, then without.
import { Observable } from "../lib/observable.js";

export class Showing {
  // null: nothing is typed; else {pane, turn, turns}.
  state = new Observable(null);

  #controller = null;
  #alarm;

  constructor({ alarm }) { this.#alarm = alarm; }

  // Resolves with whether it came to its end.
  async run(panes, { before, keys }) {
    this.stop();
    const controller = this.#controller = new AbortController();
    const { signal } = controller;
    for (const pane of panes) pane.begin(before);
    for (const [turn, pane] of panes.entries()) {
      this.state.set({ pane, turn: turn + 1, turns: panes.length });
      await this.#type(pane, keys, signal);
      await untilIdle(pane, signal);
      if (signal.aborted) return false;
    }
    this.#controller = null;
    this.state.set(null);
    return true;
  }

  stop() {
    if (this.#controller === null) return;
    this.#controller.abort();
    this.#controller = null;
    this.state.set(null);
  }

  async #type(pane, keys, signal) {
    for (const { text, caret, delay } of keys) {
      await this.#pause(delay, signal);
      if (signal.aborted) return;
      pane.type(text, caret);
    }
  }

  #pause(delay, signal) {
    return new Promise((resolve) => {
      const forget = this.#alarm(resolve, delay);
      signal.addEventListener("abort", () => { forget(); resolve(); }, { once: true });
    });
  }
}

function untilIdle(pane, signal) {
  return new Promise((resolve) => {
    if (pane.isIdle || signal.aborted) { resolve(); return; }
    const over = () => { forget(); resolve(); };
    const forget = pane.changed.subscribe(() => { if (pane.isIdle) over(); });
    signal.addEventListener("abort", over, { once: true });
  });
}
