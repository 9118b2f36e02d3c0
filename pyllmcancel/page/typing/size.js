// The token limit of a suggestion, and the time between two keys that are typed for the person. A small model on a fast
// machine would be done before the next key, and a large one on a slow machine would never show a text. So both follow the
// measured speed.
const SECONDS = 0.4; // four times the time between two keys, since a server that computes several at once is faster
const LEAST = 12, MOST = 1500; // tokens
const UNKNOWN = 48; // tokens, before anything is measured
const KEY = 110; // milliseconds between two keys, on average
const MARGIN = 1.5, SLOWEST = 5;

export class Size {
  // The highest speed counts: answers that are computed beside others are slower, and both panes need the same limit.
  #rate = 0;
  pace = 1; // how many times as slowly as a person's the keys come

  learn(ending) {
    this.#rate = Math.max(this.#rate, ending.timings?.predicted_per_second ?? 0);
  }

  // Forget what was learnt: the machine may be busier now.
  forget() { this.#rate = 0; }

  get tokens() {
    return this.#rate === 0 ? UNKNOWN : Math.min(MOST, Math.max(LEAST, Math.round(this.#rate * SECONDS * this.pace)));
  }
}

// Return how many times as slowly as a person one must type so that a text comes before the next key, if the first text
// comes `latency` milliseconds after its key.
export const paceOf = (latency) => Math.min(SLOWEST, Math.max(1, MARGIN * latency / KEY));
