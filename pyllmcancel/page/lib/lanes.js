// The blocks that a timeline draws: the work of each slot, and the waiting requests. Times are seconds since the epoch.
import { cap, trim } from "./ring.js";

const KEEP = 300; // seconds for which blocks are kept
const MAX_BLOCKS = 3000; // of one lane
const MERGED = 0.25; // seconds: shorter blocks of one request and kind are merged
export const SUMS = ["busy", "tokens", "drafted", "accepted", "steps"]; // of merged blocks
const TOUCHING = 0.03; // seconds between two blocks that are drawn as one

// A block: {kind, entry, choice, at, until, busy, tokens, drafted, accepted, steps, number}; `kind` is "prefill", "decode"
// or "aborted". Of its tokens, `drafted` were drafts, and `accepted` of those became part of the answer.
export class Lanes {
  slots = []; // by slot: blocks in order of time
  queue = []; // {entry, row, at, until}; `until` is Infinity while it waits
  marks = []; // cancels: {entry, at, until, slots, row}; `until` is null until the computation has stopped

  #rows = []; // of the queue: the waiting request in each row
  #taken = new Map(); // lanes by the engine's numbers of sequences

  // Return the lane of a sequence, the lowest free one. There are more sequences than slots, because idle prefixes have
  // numbers, too.
  of(sequence) {
    if (!this.#taken.has(sequence)) {
      const taken = new Set(this.#taken.values());
      let lane = 0;
      while (taken.has(lane)) lane += 1;
      this.#taken.set(sequence, lane);
    }
    return this.#taken.get(sequence);
  }

  // The requests that had these lanes have ended.
  free(lanes) {
    for (const [sequence, lane] of this.#taken) if (lanes.includes(lane)) this.#taken.delete(sequence);
  }

  step(block, slot) {
    while (this.slots.length <= slot) this.slots.push([]);
    const lane = this.slots[slot];
    const last = lane.at(-1);
    if (last !== undefined && joins(last, block)) {
      last.until = block.until;
      for (const name of SUMS) last[name] += block[name];
      last.number = block.number;
    } else {
      lane.push(block);
    }
    cap(lane, MAX_BLOCKS);
  }

  waits(entry, at) {
    let row = this.#rows.indexOf(undefined);
    if (row < 0) row = this.#rows.length;
    this.#rows[row] = entry;
    this.queue.push({ kind: "waiting", entry, row, at, until: Infinity });
    cap(this.queue, MAX_BLOCKS);
  }

  // The request was admitted, or ended before that.
  waitedUntil(entry, until) {
    const row = this.#rows.indexOf(entry);
    if (row < 0) return;
    this.#rows[row] = undefined;
    while (this.#rows.length > 0 && this.#rows.at(-1) === undefined) this.#rows.pop();
    const block = this.queue.findLast((one) => one.entry === entry);
    if (block !== undefined) block.until = Math.max(until, block.at);
  }

  cancelled(entry, at) {
    const row = this.#rows.indexOf(entry);
    this.marks.push({ entry, at, until: null, slots: [...entry.slots], row: row < 0 ? null : row });
    cap(this.marks, MAX_BLOCKS);
  }

  stopped(entry, until) {
    const mark = this.marks.findLast((one) => one.entry === entry);
    if (mark !== undefined) mark.until = until;
  }

  get queueRows() { return this.#rows.length; }

  trim(now) {
    const isOld = (block) => block.until !== null && block.until < now - KEEP;
    for (const lane of this.slots) trim(lane, isOld);
    trim(this.queue, isOld);
    trim(this.marks, isOld);
  }
}

const joins = (last, block) =>
  last.kind === block.kind && last.entry === block.entry && last.choice === block.choice && block.kind === "decode"
  && block.at - last.until < TOUCHING && block.until - last.at < MERGED;
