// The time before the page was opened, drawn from the times of the requests that the first snapshot lists. Nobody has
// recorded the steps, so a phase is one block, even if the request was paused in it.

const KEEP = 300; // seconds
const RATED = 60; // seconds for which tokens a second are estimated
const CLOSE = 0.002; // seconds by which two blocks of a lane may overlap: their clocks are read one after the other

// Add the requests to `lanes` and `series`. `entries` are listed, live or ended; `now` is the snapshot's time.
export function recall(entries, { lanes, series, slots, now }) {
  const known = entries.filter((entry) => entry.live || (entry.t.ended ?? 0) > now - KEEP);
  recallQueue(known, lanes);
  recallSlots(known, lanes, slots, now);
  recallCancels(known, lanes);
  recallRates(known, series, now);
}

// Return the time when nothing was computed for the request any more; Infinity while something is.
function endOf({ t, live, cancel_latency_ms: ms }) {
  if (live) return Infinity;
  return t.cancelled !== null && ms !== null ? Math.min(t.cancelled + ms / 1000, t.ended) : t.ended;
}

// Return the phases of a request that has been admitted: [{kind, at, until, tokens}].
function phasesOf(entry, now) {
  const { t } = entry, end = Math.min(endOf(entry), now);
  const first = t.first_token ?? end;
  const prompt = { kind: "prefill", at: t.admitted, until: first, tokens: Math.max(0, entry.prompt_tokens_done - entry.cached_tokens) };
  const answer = { kind: "decode", at: first, until: end, tokens: entry.completion_tokens };
  return [prompt, answer].filter(({ at, until }) => until > at);
}

// The lowest places that are free for a time. Times are asked for in the order of their beginnings.
class Shelf {
  #until = []; // by place: the end of the last time
  #reserved = new Map(); // place: the beginning of a time without an end

  reserve(place, from) { this.#reserved.set(place, from); }

  // Return a place below `most`, or undefined.
  take(from, until, most = Infinity) {
    for (let place = 0; place < Math.min(most, this.#until.length + this.#reserved.size + 1); place += 1) {
      if ((this.#until[place] ?? 0) > from + CLOSE || (this.#reserved.get(place) ?? Infinity) < until - CLOSE) continue;
      this.#until[place] = until;
      return place;
    }
    return undefined;
  }
}

const by = (name) => (one, other) => one.t[name] - other.t[name];

// Requests that wait still are in the queue already.
function recallQueue(entries, lanes) {
  const shelf = new Shelf();
  for (const { row, at } of lanes.queue) shelf.reserve(row, at);
  for (const entry of entries.filter(({ live, t }) => !live || t.admitted !== null).sort(by("arrived"))) {
    const at = entry.t.arrived, until = entry.t.admitted ?? endOf(entry);
    if (until > at) lanes.queue.push({ kind: "waiting", entry, row: shelf.take(at, until), at, until });
  }
  lanes.queue.sort((one, other) => one.at - other.at);
}

function recallSlots(entries, lanes, slots, now) {
  const shelf = new Shelf();
  const admitted = entries.filter(({ t }) => t.admitted !== null).sort(by("admitted"));
  const live = admitted.filter((entry) => entry.live), ended = admitted.filter((entry) => !entry.live);
  for (const { slots: taken, t } of live) for (const slot of taken) shelf.reserve(slot, t.admitted);
  for (const entry of ended) {
    const taken = Array.from({ length: entry.n }, () => shelf.take(entry.t.admitted, endOf(entry), slots));
    entry.slots = taken.filter((slot) => slot !== undefined);
  }
  for (const entry of [...ended, ...live]) draw(entry, lanes, now);
}

function draw(entry, lanes, now) {
  for (const { tokens, ...phase } of phasesOf(entry, now)) {
    for (const [choice, slot] of entry.slots.entries()) {
      const share = Math.round(tokens / entry.slots.length);
      lanes.step({ ...phase, entry, choice, busy: phase.until - phase.at, tokens: share, drafted: 0, accepted: 0, steps: 0, number: 0, status: "ok" }, slot);
    }
  }
}

function recallCancels(entries, lanes) {
  for (const entry of entries.filter(({ t }) => t.cancelled !== null).sort(by("cancelled"))) {
    const row = entry.slots.length > 0 ? null : lanes.queue.find((block) => block.entry === entry)?.row ?? null;
    lanes.marks.push({ entry, at: entry.t.cancelled, until: entry.live ? null : endOf(entry), slots: [...entry.slots], row });
  }
}

// A phase's tokens are spread evenly over its time.
function recallRates(entries, series, now) {
  const from = now - RATED;
  for (const entry of entries.filter(({ t }) => t.admitted !== null)) {
    for (const { kind, at, until, tokens } of phasesOf(entry, now)) {
      if (until > from) series.add(Math.max(at, from), until, kind, (tokens * (until - Math.max(at, from))) / (until - at));
    }
  }
  const waits = entries.map((entry) => ({ at: entry.t.arrived, until: entry.t.admitted ?? endOf(entry) }));
  for (let second = Math.ceil(from); second < now; second += 1) {
    series.set(second, "waiting", waits.filter(({ at, until }) => at <= second && until > second).length);
  }
}
