// Sessions, their families, and supersede keys, as far as the feed reports them.
import { capMap } from "./ring.js";

const MAX_SESSIONS = 500;
export const nameOf = (owner, id) => `${owner}\u0000${id}`;

// A session: {uid, key, id, owner, parent, children: Set, live: Set of entries, nRequests, used}.
export class Families {
  sessions = new Map();
  #uids = 0;
  keys = new Map(); // supersede keys: {key, owner, newest: entry, superseded: number}

  // Take over a snapshot: sessions that it does not name are forgotten.
  reset(listed) {
    this.sessions.clear();
    this.keys.clear();
    for (const one of [...listed].reverse()) {
      const session = this.#session(one.owner, one.id);
      session.nRequests = one.n_requests;
      session.used = one.used;
      this.#adopt(session, one.parent);
    }
  }

  added(entry, isNew) {
    if (entry.supersede !== null) this.#keyed(entry);
    if (entry.session === null) return;
    const session = this.#session(entry.owner, entry.session);
    session.live.add(entry);
    session.used = entry.t.arrived;
    if (isNew) session.nRequests += 1;
    if (entry.parent_session !== null) this.#adopt(session, entry.parent_session);
    const dropped = capMap(this.sessions, MAX_SESSIONS, (one) => one.live.size === 0 && one.children.size === 0);
    for (const one of dropped) this.#parent(one)?.children.delete(one.key);
  }

  ended(entry) {
    const known = this.keys.get(nameOf(entry.owner, entry.supersede));
    if (known !== undefined && entry.cancel_reason === "superseded") known.superseded += 1;
    this.sessions.get(nameOf(entry.owner, entry.session))?.live.delete(entry);
  }

  // The entry is listed no longer: a key that still named it would keep it, with all that it has, in memory.
  forgot(entry) {
    const key = nameOf(entry.owner, entry.supersede);
    if (this.keys.get(key)?.newest === entry) this.keys.delete(key);
  }

  keyOf(entry) { return entry.supersede === null ? undefined : this.keys.get(nameOf(entry.owner, entry.supersede)); }

  // Sessions without a known parent, in the order in which they came.
  roots() { return [...this.sessions.values()].filter((one) => this.#parent(one) === undefined); }

  childrenOf(session) { return [...session.children].map((key) => this.sessions.get(key)).filter((one) => one !== undefined); }

  // The number of requests that live in the session and below.
  liveBelow(session, depth = 0) {
    if (depth > 16) return 0;
    return this.childrenOf(session).reduce((sum, child) => sum + this.liveBelow(child, depth + 1), session.live.size);
  }

  #parent(session) { return session.parent === null ? undefined : this.sessions.get(nameOf(session.owner, session.parent)); }

  #session(owner, id) {
    const key = nameOf(owner, id);
    let session = this.sessions.get(key);
    if (session === undefined) {
      this.#uids += 1;
      session = { uid: this.#uids, key, id, owner, parent: null, children: new Set(), live: new Set(), nRequests: 0, used: 0 };
      this.sessions.set(key, session);
      for (const other of this.sessions.values()) {
        if (other.owner === owner && other.parent === id) session.children.add(other.key);
      }
    }
    return session;
  }

  #adopt(session, parent) {
    if (parent === null || session.parent !== null || parent === session.id) return;
    session.parent = parent;
    this.sessions.get(nameOf(session.owner, parent))?.children.add(session.key);
  }

  #keyed(entry) {
    const key = nameOf(entry.owner, entry.supersede);
    const known = this.keys.get(key) ?? { key: entry.supersede, owner: entry.owner, newest: null, superseded: 0 };
    known.newest = entry;
    this.keys.set(key, known);
  }
}
