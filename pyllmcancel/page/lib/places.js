// Which row of a list a thing has. Nothing moves under a pointer: a newcomer takes the place of what has ended, and
// places are given up only while nobody is at the list.

const LINGER = 3; // seconds that a row stays after its end, at least
const LINGER_LONG = 6; // seconds after which its place is closed if nothing came

export class Places {
  #rows = []; // {item, endedAt: seconds or null}

  // `items` are those that live, in order. `held` says of an item that it must stay (pointer, focus, a press);
  // `quiet` that nobody is at the list. Returns the rows' items, those that have just ended among them.
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
