// The token limit of a suggestion. A small model on a fast machine would be done before the next key: nothing would be
// superseded, and nothing seen. So the limit follows the speed.
const SECONDS = 0.25; // twice the time between two keys
export const LEAST = 48, MOST = 1500; // tokens

export class Size {
  // The highest speed counts: answers that are computed beside others are slower, and both panes need the same limit.
  #rate = 0;

  learn(ending) {
    this.#rate = Math.max(this.#rate, ending.timings?.predicted_per_second ?? 0);
  }

  get tokens() {
    return Math.min(MOST, Math.max(LEAST, Math.round(this.#rate * SECONDS)));
  }
}
