// The requests that wait for a model that is not loaded, as entries like a Model's.

const NOT_YET = { admitted: null, first_token: null, cancelled: null, ended: null };

export class Waiting {
  live = new Map(); // entries by uid, oldest first

  #nextUid;

  constructor(nextUid) { this.#nextUid = nextUid; }

  // `listed`: all that wait now. `isTaken(id)`: whether the model's process has the request by now.
  take(listed, isTaken) {
    const known = new Map([...this.live.values()].map((entry) => [nameOf(entry), entry]));
    this.live = new Map();
    for (const data of listed) {
      const entry = known.get(nameOf(data)) ?? this.#entry(data);
      known.delete(nameOf(data));
      this.live.set(entry.uid, entry);
    }
    // A row of a list shows its end for a moment.
    for (const entry of known.values()) Object.assign(entry, { live: false, lost: isTaken(entry.id) ? "loaded" : "left", t: { ...entry.t, ended: Date.now() / 1000 } });
  }

  find(id) { return [...this.live.values()].findLast((entry) => entry.id === id); }

  #entry(data) {
    const t = { arrived: data.created, ...NOT_YET };
    return { ...data, uid: this.#nextUid(), live: true, lost: null, wasted: 0, t };
  }
}

const nameOf = ({ owner, id, created }) => `${owner}\u0000${id}\u0000${created}`;
