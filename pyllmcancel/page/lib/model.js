// The engine's state as the page knows it, from the feed's events (docs/events.md): pure state, with limits, no DOM.
// All its times are seconds since the epoch, by the server's clock, whose present time is `serverNow`.
import { Families, nameOf } from "./families.js";
import { recall } from "./history.js";
import { Lanes } from "./lanes.js";
import { Observable } from "./observable.js";
import { cap, capMap, trim } from "./ring.js";
import { Series } from "./series.js";

const MAX_LISTED = 256; // ended requests in a snapshot (docs/events.md)
const MAX_ENDED = 500, MAX_EARLY = 200, MAX_LIVE = 20_000;
const KEEP = 300; // seconds for which cancels and gaps are kept
const seconds = () => performance.now() / 1000;

// An entry is the feed's, and: `replica` ("" for a server of one model), `uid` (unique, since ids may be used again),
// `t` (its times, since the epoch), `live`, `lost` (it ended unseen: null, "restarted" or "lost"), `wasted` (tokens of
// aborted steps).
export class Model {
  events = new Observable(null); // notified after each event
  server = null; // the last snapshot
  live = new Map(); // entries by uid, oldest first
  ended = []; // entries, newest last
  lanes = new Lanes();
  families = new Families();
  series = new Series(KEEP);
  latencies = []; // of cancels: {until, ms, entry}
  lost = false; // whether the feed is lost: set by its reader
  since = null; // {at, isStart}: the time before which nothing is known; isStart: it is the server's start
  gaps = []; // {at, until, why}: times about which nothing is known; why: "restarted" or "lost"
  stats = null; // the last event `stats`, if the feed shows every owner's requests

  #base = 0; // from the server's monotonic clock to the epoch
  #heard = null; // time of the last event
  #ahead = Infinity; // the page's clock less the server's, at the quickest event
  #named = new Map(); // owner and id -> entry, live or ended
  #ids = new Map(); // id -> the newest of this id: steps name no owner
  #early = new Map(); // cancels of requests that have not come yet
  #nextUid;

  // `nextUid()` returns the next request's number.
  constructor(replica = "", nextUid = counter()) {
    this.replica = replica;
    this.#nextUid = nextUid;
  }

  take(event, now = seconds()) {
    this[TAKES[event.type]]?.(event); // a newer server may send unknown types
    const at = event.until ?? event.at;
    if (at !== undefined) this.#heardAt(at + this.#base, now);
    this.events.set(event);
  }

  // Return the server's present time, in seconds since the epoch; null before the first event.
  serverNow(now = seconds()) { return this.#heard === null ? null : Math.max(this.#heard, now - this.#ahead); }

  get heard() { return this.#heard; }

  // Return the newest request of this id.
  find(id) { return this.#ids.get(id); }

  waiting() { return [...this.live.values()].filter((entry) => entry.t.admitted === null); }
  running() { return [...this.live.values()].filter((entry) => entry.t.admitted !== null); }

  // The slots that are taken: one at least by each running request.
  slotsUsed() { return this.running().reduce((sum, entry) => sum + Math.max(1, entry.slots.length), 0); }

  #heardAt(t, now) {
    this.#heard = Math.max(this.#heard ?? t, t);
    // The quickest event shows best how far the clocks are apart; it is forgotten slowly, since clocks drift.
    this.#ahead = Math.min(this.#ahead + 0.0005, now - t);
    this.lanes.trim(this.#heard);
    trim(this.latencies, (one) => one.until < this.#heard - KEEP);
    trim(this.gaps, (one) => one.until < this.#heard - KEEP, 1);
  }

  onSnapshot(event) {
    const before = this.server;
    const restarted = before !== null && before.server.boot !== event.server.boot;
    if (before === null || restarted) this.#base = event.epoch - event.at;
    const t = event.at + this.#base;
    if (restarted) this.#ahead = Infinity;
    if (before !== null) this.#gap(t, restarted ? "restarted" : "lost", event);
    this.server = event;
    this.stats = event.stats ?? null;
    this.families.reset(event.sessions);
    for (const entry of this.live.values()) this.families.added(entry, false);
    for (const data of event.requests) this.#listed(data);
    while (this.lanes.slots.length < event.capacity.slots) this.lanes.slots.push([]);
    if (before === null) this.#recall(t, event);
  }

  // Add the time before the first snapshot, as far as the server remembers its requests.
  #recall(now, { capacity, server }) {
    recall([...this.ended, ...this.live.values()], { lanes: this.lanes, series: this.series, slots: capacity.slots, now });
    const isStart = this.ended.length < MAX_LISTED;
    this.since = { at: isStart ? Math.min(server.started, now) : this.ended[0].t.ended, isStart };
  }

  // Requests that live here but are not in the snapshot ended unseen.
  #gap(until, why, event) {
    this.gaps.push({ at: Math.min(this.#heard, until), until, why });
    cap(this.gaps, 50);
    const listed = new Set(event.requests.map((data) => nameOf(data.owner, data.id)));
    for (const entry of [...this.live.values()]) {
      if (why === "lost" && listed.has(nameOf(entry.owner, entry.id))) continue;
      entry.lost = why;
      entry.status = "lost";
      entry.t.ended = this.#heard;
      this.#end(entry);
    }
  }

  #listed(data) {
    const known = this.#named.get(nameOf(data.owner, data.id));
    const isOver = data.times.ended !== null;
    if (known !== undefined && !known.live && known.created === data.created) return;
    if (known?.live) return isOver ? this.onEnded({ request: data }) : this.#fill(known, data);
    if (!isOver) return this.onAdded({ request: data }, false);
    const entry = this.#entry(data);
    this.#remember(entry);
    this.#measure(entry);
  }

  onAdded({ request }, isNew = true) {
    if (this.live.size >= MAX_LIVE) return;
    const name = nameOf(request.owner, request.id);
    const older = this.#named.get(name);
    if (older?.created === request.created) return; // the snapshot had it already
    if (older?.live) this.#end(older); // its ending was missed
    const entry = this.#entry(request);
    entry.live = true;
    this.live.set(entry.uid, entry);
    this.families.added(entry, isNew);
    if (entry.t.admitted === null) this.lanes.waits(entry, entry.t.arrived);
    const early = this.#early.get(name);
    if (early !== undefined) { this.#early.delete(name); this.#cancel(entry, early); }
  }

  onAdmitted({ at, id, owner, slots, cached_tokens: cached }) {
    const entry = this.#named.get(nameOf(owner, id));
    if (!entry?.live || entry.t.admitted !== null) return;
    entry.t.admitted = at + this.#base;
    Object.assign(entry, { slots: this.#lanesOf(slots), cached_tokens: cached, prompt_tokens_done: Math.max(entry.prompt_tokens_done, cached) });
    if (entry.status === "waiting") entry.status = "running";
    entry.phase = "prefill";
    this.lanes.waitedUntil(entry, entry.t.admitted);
  }

  onStep(event) {
    if (event.until <= this.server?.at) return; // the snapshot has it
    const at = event.at + this.#base, until = event.until + this.#base;
    const isAborted = event.status === "aborted";
    for (const one of event.sequences) {
      const entry = this.#inStep(one);
      const kind = event.status === "ok" ? (one.phase === "decode" ? "decode" : "prefill") : "aborted";
      const { n_tokens: tokens, n_drafted: drafted = 0, n_accepted: accepted = 0 } = one;
      const kept = tokens - drafted + accepted; // rejected drafts are no part of an answer
      if (event.status === "ok") {
        this.series.add(at, until, kind, kept);
        if (entry?.live) advance(entry, kind, kept, until);
      } else if (isAborted && entry !== undefined) {
        entry.wasted += tokens;
      }
      // a lane that was given back may be another request's
      const slot = entry?.live ? this.lanes.of(one.slot) : entry?.slots[0];
      if (slot === undefined) continue;
      if (!entry.slots.includes(slot)) entry.slots = [...entry.slots, slot];
      const part = { kind, entry, choice: one.choice, at, until, busy: event.busy, tokens, drafted, accepted };
      this.lanes.step({ ...part, steps: event.n_steps, number: event.number, status: event.status }, slot);
    }
    if (event.wasted) this.series.add(at, until, "wasted", event.wasted);
  }

  // Two owners may have requests of one id: the one that has the slot is meant.
  #inStep({ request: id, slot }) {
    const newest = this.#ids.get(id);
    if (newest === undefined || newest.slots.includes(slot)) return newest;
    for (const entry of this.live.values()) if (entry.id === id && entry.slots.includes(slot)) return entry;
    return newest;
  }

  onCancelled(event) {
    const name = nameOf(event.owner, event.id);
    const entry = this.#named.get(name);
    if (entry?.live) return this.#cancel(entry, event);
    this.#early.set(name, event);
    capMap(this.#early, MAX_EARLY);
  }

  #cancel(entry, { at, reason, superseded_by: by }) {
    if (entry.t.cancelled !== null && entry.status === "cancelling") return;
    entry.t.cancelled = at + this.#base;
    Object.assign(entry, { status: "cancelling", cancel_reason: reason, superseded_by: by });
    this.lanes.cancelled(entry, entry.t.cancelled);
  }

  onEnded({ request }) {
    const name = nameOf(request.owner, request.id);
    this.#early.delete(name); // sent again, after its end: it must not cancel a later request of this id
    const entry = this.#named.get(name);
    if (!entry?.live) return this.#listed(request);
    const slots = entry.slots;
    this.#fill(entry, request);
    entry.slots = slots; // the slots that it had: an ended request has none
    this.#end(entry);
    this.#measure(entry);
  }

  onStats(event) {
    this.stats = event;
    const t = event.at + this.#base;
    for (const name of ["waiting", "running", "slots_used", "cells_used", "cells_idle"]) this.series.set(t, name, event[name]);
  }

  #lanesOf(sequences) { return sequences.map((one) => this.lanes.of(one)); }

  #end(entry) {
    entry.live = false;
    this.lanes.free(entry.slots);
    this.live.delete(entry.uid);
    this.lanes.waitedUntil(entry, entry.t.admitted ?? entry.t.ended);
    // At the latest here: a request that ended unseen must not look as if it were stopping for ever.
    if (entry.t.cancelled !== null) this.lanes.stopped(entry, entry.t.ended ?? this.#heard);
    this.families.ended(entry);
    this.#remember(entry);
  }

  #measure(entry) {
    const ms = entry.cancel_latency_ms;
    if (ms === null || entry.t.cancelled === null) return;
    const until = entry.t.cancelled + ms / 1000;
    this.lanes.stopped(entry, until);
    this.latencies.push({ until: entry.t.ended, ms, entry });
    cap(this.latencies, 5000);
  }

  #remember(entry) {
    this.ended.push(entry);
    for (const old of cap(this.ended, MAX_ENDED)) {
      this.families.forgot(old);
      if (this.#named.get(nameOf(old.owner, old.id)) === old) this.#named.delete(nameOf(old.owner, old.id));
      if (this.#ids.get(old.id) === old) this.#ids.delete(old.id);
    }
  }

  #entry(data) {
    const entry = this.#fill({ uid: this.#nextUid(), live: false, lost: null, wasted: 0, t: {} }, data);
    this.#named.set(nameOf(entry.owner, entry.id), entry);
    this.#ids.set(entry.id, entry);
    return entry;
  }

  #fill(entry, data) {
    Object.assign(entry, data, { slots: this.#lanesOf(data.slots), replica: this.replica });
    for (const name of TIMES) entry.t[name] = data.times[name] === null || data.times[name] === undefined ? null : data.times[name] + this.#base;
    return entry;
  }
}

const TAKES = {
  snapshot: "onSnapshot", added: "onAdded", admitted: "onAdmitted", step: "onStep", cancelled: "onCancelled", ended: "onEnded", stats: "onStats",
};
const TIMES = ["arrived", "admitted", "first_token", "cancelled", "ended"];
const counter = () => { let last = 0; return () => (last += 1); };

// The present counts of a live request, as an estimate; its last event has the exact ones.
function advance(entry, kind, tokens, until) {
  entry.phase = kind;
  if (kind === "prefill") {
    entry.prompt_tokens_done = Math.min(entry.prompt_tokens, entry.prompt_tokens_done + tokens);
  } else {
    entry.completion_tokens += tokens;
    entry.t.first_token ??= until;
  }
}
