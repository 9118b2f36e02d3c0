// Numbers per second, for the last minutes.

export class Series {
  #seconds;
  #values = new Map(); // second -> {name: number}

  constructor(seconds = 300) { this.#seconds = seconds; }

  #at(second) {
    let found = this.#values.get(second);
    if (found === undefined) {
      found = {};
      this.#values.set(second, found);
      for (const old of this.#values.keys()) {
        if (old > second - this.#seconds) break;
        this.#values.delete(old);
      }
    }
    return found;
  }

  set(t, name, value) { this.#at(Math.floor(t))[name] = value; }

  // Spreads `amount` over the seconds from `at` until `until`.
  add(at, until, name, amount) {
    const first = Math.floor(at), last = Math.min(Math.floor(until), first + 60);
    for (let second = first; second <= last; second += 1) {
      const share = until > at ? Math.max(0, Math.min(until, second + 1) - Math.max(at, second)) / (until - at) : 1;
      const values = this.#at(second);
      values[name] = (values[name] ?? 0) + amount * share;
    }
  }

  get(t, name) { return this.#values.get(Math.floor(t))?.[name] ?? null; }

  // Return the mean of the whole seconds before `now`; a second without a value counts as 0.
  rate(now, name, seconds = 3) {
    return this.last(now, name, seconds).reduce((sum, value) => sum + value, 0) / seconds;
  }

  // Return `n` values, oldest first, of the whole seconds before `now`; a missing one is 0.
  last(now, name, n) {
    return Array.from({ length: n }, (_, i) => this.get(now - n + i, name) ?? 0);
  }

  // Return the same, with the preceding value in place of a missing one.
  lastKnown(now, name, n) {
    let known = 0;
    return Array.from({ length: n }, (_, i) => { known = this.get(now - n + i, name) ?? known; return known; });
  }
}

// Return the top of a chart's axis, at least `least`: a few spikes do not flatten the rest.
export function robustTop(values, least = 1) {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  if (sorted.length === 0) return least;
  const usual = sorted[Math.floor(0.95 * (sorted.length - 1))];
  const top = sorted.at(-1) > 2.5 * usual ? 1.5 * usual : sorted.at(-1);
  return Math.max(least, top);
}
