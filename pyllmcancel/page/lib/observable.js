// A value that components follow. `set` notifies each listener at once.
import { useEffect, useLayoutEffect, useReducer, useState } from "./html.js";

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

  // Notify after the object in `value` was changed in place.
  changed() { for (const listener of [...this.#listeners]) listener(this.#value); }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

// Return the value, in a component that is drawn again when the value changes.
export function useObservable(observable) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  // Subscribed before anything else can run: a value set between the drawing and a later effect would never be drawn.
  useLayoutEffect(() => observable.subscribe(redraw), [observable]);
  return observable.value;
}

// Call `act` at each of the target's events; return the function that ends this.
export function listen(target, event, act) {
  target.addEventListener(event, act);
  return () => target.removeEventListener(event, act);
}

// Return what `read` returns, in a component that is drawn again when that changes at one of the target's events.
export function useEvent(target, event, read) {
  const [value, setValue] = useState(read);
  useEffect(() => listen(target, event, () => setValue(read())), []);
  return value;
}
