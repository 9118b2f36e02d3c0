// The rows of items in a list. Nothing moves under a pointer: a new item takes the row of one that has ended, and rows
// are removed only while nobody uses the list.

const LINGER = 3; // seconds that a row stays after its end, at least
const LINGER_LONG = 6; // seconds after which an unused row is removed

export class Places {
  #rows = []; // {item, endedAt: seconds or null}

  // `items` are the live ones, in order. `held` returns whether an item must stay (pointer, focus, a press); `quiet` is
  // true while nobody uses the list. Returns the rows' items, including those that have just ended.
  update(items, now, { held = () => false, quiet = true, most = 200 } = {}) {
    const live = new Set(items);
    for (const row of this.#rows) {
      if (live.delete(row.item)) row.endedAt = null; else row.endedAt ??= now;
    }
    const mayGo = (row, after) => row.endedAt !== null && now - row.endedAt >= after && !held(row.item);
    for (const item of live) {
      const free = this.#rows.findIndex((row) => mayGo(row, LINGER));
      if (free >= 0) this.#rows[free] = { item, endedAt: null };
      else if (this.#rows.length < most) this.#rows.push({ item, endedAt: null });
    }
    if (quiet) this.#rows = this.#rows.filter((row) => !mayGo(row, LINGER_LONG));
    else while (this.#rows.length > 0 && mayGo(this.#rows.at(-1), LINGER_LONG)) this.#rows.pop();
    return this.#rows.map((row) => row.item);
  }
}
