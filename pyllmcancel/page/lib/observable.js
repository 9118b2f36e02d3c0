// A value that components follow. `set` is heard at once, by each listener once.
import { useLayoutEffect, useReducer } from "./html.js";

export class Observable {
  #value;
  #listeners = new Set();

  constructor(value) { this.#value = value; }

  get value() { return this.#value; }

  set(value) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    this.changed();
  }

  // What `value` holds was altered in place.
  changed() { for (const listener of [...this.#listeners]) listener(this.#value); }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

// The value, in a component that is drawn again when it changes.
export function useObservable(observable) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  // Before anything else can run: what is set between the drawing and an effect after it would never be drawn.
  useLayoutEffect(() => observable.subscribe(redraw), [observable]);
  return observable.value;
}
