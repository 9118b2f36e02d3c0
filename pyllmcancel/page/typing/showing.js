// "Type for me": the same keys in the same rhythm, first with superseding, then without.
import { Observable } from "../lib/observable.js";

export class Showing {
  // null: nothing is typed; else {pane, turn, turns}, without a pane while the script is made.
  state = new Observable(null);

  #controller = null;
  #alarm;

  constructor({ alarm }) { this.#alarm = alarm; }

  // `makeScript(signal)` returns the script, or a promise of it. Resolves with the script after its end; null: stopped.
  async run(panes, makeScript) {
    this.stop();
    const controller = this.#controller = new AbortController();
    const { signal } = controller;
    this.state.set({ pane: null });
    const script = await makeScript(signal);
    if (signal.aborted) return null;
    const { before, keys } = script;
    for (const pane of panes) pane.begin(before);
    for (const [turn, pane] of panes.entries()) {
      this.state.set({ pane, turn: turn + 1, turns: panes.length });
      await this.#type(pane, keys, signal);
      await untilIdle(pane, signal);
      if (signal.aborted) return null;
    }
    this.#controller = null;
    this.state.set(null);
    return script;
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
