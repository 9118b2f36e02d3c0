// What the page makes of the feed's events.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Model } from "../../pyllmcancel/page/lib/model.js";

const EPOCH = 1_000_000; // of the server's monotonic 0

const entryOf = (id, fields = {}) => ({
  id, status: "waiting", phase: "waiting", owner: "nobody", session: null, parent_session: null, supersede: null, priority: 0, n: 1, slots: [],
  paused: false, prompt_tokens: 100, prompt_tokens_done: 0, cached_tokens: 0, completion_tokens: 0, finish_reason: null, cancel_reason: null,
  superseded_by: null, cancel_latency_ms: null, error: null, created: EPOCH, seconds: 0, max_tokens: 50, ...fields,
  times: { arrived: 10, admitted: null, first_token: null, cancelled: null, ended: null, ...fields.times },
});
const snapshot = (fields = {}) => ({
  type: "snapshot", at: 10, epoch: EPOCH + 10, server: { version: "1", boot: "a", started: EPOCH }, capacity: { slots: 2, cells: 100, n_ctx: 50 },
  all_owners: true, exposes_prompts: false, requests: [], sessions: [], ...fields,
});
const added = (id, at, fields = {}) => ({ type: "added", at, request: entryOf(id, { created: EPOCH + at, ...fields, times: { arrived: at } }) });
const admitted = (id, at, slots = [0], owner = "nobody") => ({ type: "admitted", at, id, owner, slots, cached_tokens: 20 });
const step = (id, at, until, fields = {}) => ({
  type: "step", number: 1, n_steps: 1, at, until, busy: until - at, status: "ok", spared: false, survivors: 0, wasted: 0, threads: 2, others: 0,
  sequences: [{ request: id, choice: 0, slot: 0, phase: "decode", n_tokens: 4, ...fields.sequence }], ...fields,
});
const cancelled = (id, at, fields = {}) => ({ type: "cancelled", at, id, owner: "nobody", reason: "explicit", superseded_by: null, ...fields });
const ended = (id, at, fields = {}) => ({
  type: "ended", at, request: entryOf(id, { status: "finished", finish_reason: "stop", created: EPOCH + 11, ...fields, times: { arrived: 11, ended: at, ...fields.times } }),
});
const cancelEnding = { status: "cancelled", finish_reason: "cancelled", cancel_reason: "explicit", cancel_latency_ms: 2 };

function fed(...events) {
  const model = new Model();
  for (const event of [snapshot(), ...events]) model.take(event, 0);
  return model;
}

test("a request waits, computes and ends", () => {
  const model = fed(added("r", 11));
  const entry = model.find("r");
  assert.deepEqual(model.waiting(), [entry]);
  assert.equal(model.lanes.queue[0].until, Infinity);
  model.take(admitted("r", 12, [1]), 0);
  assert.deepEqual([entry.status, entry.phase, entry.cached_tokens, model.waiting().length], ["running", "prefill", 20, 0]);
  assert.equal(model.lanes.queue[0].until, EPOCH + 12);
  model.take(step("r", 12, 12.5, { sequence: { phase: "prefill", n_tokens: 80, slot: 1 } }), 0);
  assert.equal(entry.prompt_tokens_done, 100);
  model.take(step("r", 12.5, 13, { sequence: { slot: 1 } }), 0);
  assert.deepEqual([entry.phase, entry.completion_tokens, entry.t.first_token], ["decode", 4, EPOCH + 13]);
  model.take(ended("r", 14, { completion_tokens: 5 }), 0);
  assert.deepEqual([model.live.size, model.ended.at(-1) === entry, entry.completion_tokens], [0, true, 5]);
  assert.deepEqual(entry.slots, [0], "where it was is not forgotten with its end");
  assert.deepEqual(model.lanes.slots[0].map((block) => block.kind), ["prefill", "decode"]);
});

test("there are as many lanes as requests compute at once, whichever sequences the engine gives them", () => {
  const model = fed(added("a", 11), admitted("a", 12, [5]), added("b", 11), admitted("b", 12, [7]));
  assert.deepEqual([model.find("a").slots, model.find("b").slots], [[0], [1]]);
  model.take(ended("a", 13), 0);
  for (const event of [added("c", 13), admitted("c", 13, [6]), step("c", 13, 14, { sequence: { slot: 6 } })]) model.take(event, 0);
  assert.deepEqual(model.find("c").slots, [0], "the lane that was free");
  model.take(step("a", 12, 13, { sequence: { slot: 5 } }), 0);
  assert.deepEqual(model.find("a").slots, [0], "what comes late is where it was");
  assert.equal(model.lanes.slots.length, 2);
});

test("steps in a row of one request are one block while it is short, and no longer", () => {
  const model = fed(added("r", 11), admitted("r", 11), ...Array.from({ length: 10 }, (_, i) => step("r", 12 + i / 10, 12.1 + i / 10)));
  const lane = model.lanes.slots[0];
  assert.ok(lane.length >= 4 && lane.length < 10, String(lane.length));
  assert.equal(lane.reduce((sum, block) => sum + block.tokens, 0), 40);
  assert.ok(lane.every((block) => block.until - block.at < 0.26));
});

test("a cancel is a mark from its request until the computation had stopped", () => {
  const model = fed(added("r", 11), admitted("r", 12, [1]), cancelled("r", 13));
  assert.equal(model.find("r").status, "cancelling");
  assert.deepEqual([model.lanes.marks[0].at, model.lanes.marks[0].until, model.lanes.marks[0].slots], [EPOCH + 13, null, [0]]);
  model.take(ended("r", 13.1, { ...cancelEnding, times: { cancelled: 13 } }), 0);
  assert.ok(Math.abs(model.lanes.marks[0].until - (EPOCH + 13.002)) < 1e-6);
  assert.deepEqual(model.latencies.map((one) => one.ms), [2]);
});

test("a cancel that comes before its request is kept for it", () => {
  const model = fed(cancelled("r", 10.5, { reason: "superseded", superseded_by: "s" }), added("r", 11));
  assert.deepEqual([model.find("r").status, model.find("r").superseded_by, model.find("r").t.cancelled], ["cancelling", "s", EPOCH + 10.5]);
});

test("an aborted step counts as wasted and not as done", () => {
  const model = fed(added("r", 11), admitted("r", 12), step("r", 12, 12.5, { status: "aborted", wasted: 64, sequence: { phase: "prefill", n_tokens: 64 } }));
  const entry = model.find("r");
  assert.deepEqual([entry.wasted, entry.prompt_tokens_done, model.lanes.slots[0][0].kind], [64, 20, "aborted"]);
});

test("rejected drafts are no part of an answer, and blocks that are merged add them up", () => {
  const model = fed(added("r", 11), admitted("r", 12));
  for (const at of [12, 12.1]) model.take(step("r", at, at + 0.1, { sequence: { n_tokens: 9, n_drafted: 8, n_accepted: 3 } }), 0);
  assert.equal(model.find("r").completion_tokens, 8);
  const [block] = model.lanes.slots[0];
  assert.deepEqual([model.lanes.slots[0].length, block.tokens, block.drafted, block.accepted, block.steps], [1, 18, 16, 6, 2]);
});

test("what lived at a restart is over, and the gap is known", () => {
  const model = fed(added("r", 11), admitted("r", 12));
  const entry = model.find("r");
  model.take(snapshot({ at: 3, epoch: EPOCH + 20, server: { version: "1", boot: "b", started: EPOCH + 17 } }), 0);
  assert.deepEqual([entry.live, entry.lost, model.live.size], [false, "restarted", 0]);
  assert.deepEqual(model.gaps, [{ at: EPOCH + 12, until: EPOCH + 20, why: "restarted" }]);
  model.take(added("n", 4), 0);
  assert.equal(model.find("n").t.arrived, EPOCH + 21, "times are of the new server's clock");
});

test("after a loss what lives goes on, and what has ended meanwhile has its ending", () => {
  const model = fed(added("goes on", 11), added("ended", 11), added("forgotten", 11));
  const [goesOn, over, forgotten] = ["goes on", "ended", "forgotten"].map((id) => model.find(id));
  const requests = [entryOf("goes on", { created: goesOn.created, status: "running", phase: "decode" }), ended("ended", 14).request];
  model.take(snapshot({ at: 15, epoch: EPOCH + 15, requests }), 0);
  assert.deepEqual([goesOn.live, goesOn.phase], [true, "decode"]);
  assert.deepEqual([over.live, over.status, over.lost], [false, "finished", null]);
  assert.deepEqual([forgotten.live, forgotten.lost], [false, "lost"]);
  assert.equal(model.ended.length, 2);
});

test("what a snapshot already told is not taken for another request", () => {
  const request = entryOf("r", { created: EPOCH + 11 });
  const model = new Model();
  model.take(snapshot({ requests: [request] }), 0);
  model.take({ type: "added", at: 11, request }, 0);
  assert.deepEqual([model.live.size, model.ended.length], [1, 0]);
  const over = ended("r", 12, { created: EPOCH + 11 });
  model.take(over, 0);
  model.take(over, 0);
  assert.deepEqual([model.live.size, model.ended.length], [0, 1]);
});

test("an id may come again, and two owners may use the same", () => {
  const model = fed(added("r", 11), ended("r", 12), added("r", 13), added("r", 13, { owner: "alice" }));
  assert.deepEqual([model.live.size, model.ended.length], [2, 1]);
  model.take(admitted("r", 14, [1], "alice"), 0);
  assert.deepEqual([...model.live.values()].map((entry) => [entry.owner, entry.status]), [["nobody", "waiting"], ["alice", "running"]]);
});

test("memory does not grow with the hours", () => {
  const model = fed();
  for (let i = 0; i < 4000; i += 1) {
    const at = 11 + i;
    const session = `s${i}`;
    model.take(added(`r${i}`, at, { session, supersede: `k${i}` }), 0);
    model.take(admitted(`r${i}`, at), 0);
    model.take(step(`r${i}`, at, at + 0.9), 0);
    model.take(cancelled(`r${i}`, at + 0.9), 0);
    model.take(cancelled(`never${i}`, at), 0);
    model.take(ended(`r${i}`, at + 0.95, { ...cancelEnding, created: EPOCH + at, session, supersede: `k${i}`, times: { cancelled: at + 0.9 } }), 0);
  }
  assert.equal(model.ended.length, 500);
  assert.ok(model.lanes.slots[0].length < 400 && model.lanes.queue.length < 400 && model.lanes.marks.length < 400);
  assert.ok(model.latencies.length < 400 && model.families.sessions.size <= 501);
  assert.equal(model.families.keys.size, 500, "those of the requests that are listed");
  assert.equal(model.find("r0"), undefined);
  const seconds = model.series.last(model.heard, "decode", 3000).filter((n) => n > 0).length;
  assert.ok(seconds > 290 && seconds <= 300, String(seconds));
});

test("a session that has children all the time does not grow", () => {
  const model = fed(added("root", 11, { session: "root" }));
  for (let i = 0; i < 2000; i += 1) {
    model.take(added(`r${i}`, 12 + i, { session: `s${i}`, parent_session: "root" }), 0);
    model.take(ended(`r${i}`, 12.5 + i, { created: EPOCH + 12 + i, session: `s${i}`, parent_session: "root" }), 0);
  }
  const [root] = model.families.roots();
  assert.deepEqual([root.id, root.children.size], ["root", 499], "those that are known still");
});

test("families are trees of sessions, whichever member comes first", () => {
  const model = fed(added("c", 11, { session: "child", parent_session: "root" }), added("p", 12, { session: "root" }), added("o", 13, { session: "other" }));
  const { families } = model;
  assert.deepEqual(families.roots().map((one) => one.id), ["root", "other"]);
  const [root] = families.roots();
  assert.deepEqual([families.childrenOf(root).map((one) => one.id), families.liveBelow(root)], [["child"], 2]);
  model.take(ended("c", 14, { created: EPOCH + 11, session: "child" }), 0);
  assert.equal(families.liveBelow(root), 1);
});

test("a supersede key knows its newest request, and how many it has superseded", () => {
  const model = fed(added("a", 11, { supersede: "k" }), added("b", 12, { supersede: "k" }), cancelled("a", 12, { reason: "superseded", superseded_by: "b" }));
  model.take(ended("a", 12.1, { ...cancelEnding, created: EPOCH + 11, supersede: "k", cancel_reason: "superseded", times: { cancelled: 12 } }), 0);
  const key = model.families.keyOf(model.find("b"));
  assert.deepEqual([key.newest.id, key.superseded], ["b", 1]);
});

test("the page's clock follows the server's, by the quickest event", () => {
  const model = new Model();
  model.take(snapshot(), 100); // arrives when the page's clock says 100
  assert.equal(model.serverNow(105), EPOCH + 15);
  model.take(added("r", 12), 102.5); // this one was half a second slower
  assert.ok(Math.abs(model.serverNow(105) - (EPOCH + 15)) < 0.01);
});

test("an event that it does not know is passed over", () => {
  const model = fed({ type: "of a newer server", at: 11 });
  assert.equal(model.heard, EPOCH + 11);
});

test("a cancel that is told again after its request's end cancels no later request of that id", () => {
  const over = ended("r", 12, cancelEnding);
  const model = fed(added("r", 11), cancelled("r", 11.5), over, cancelled("r", 11.5), over, added("r", 20));
  assert.equal(model.find("r").status, "waiting");
});

test("a cancel whose end was not seen is not drawn as stopping for ever", () => {
  const model = fed(added("r", 11), admitted("r", 12), cancelled("r", 13));
  assert.equal(model.lanes.marks[0].until, null);
  model.take(snapshot({ at: 2, epoch: EPOCH + 20, server: { version: "1", boot: "b", started: EPOCH + 18 } }), 0);
  assert.equal(model.lanes.marks[0].until, EPOCH + 13);
});

test("of two owners' requests of one id a step is of the one that has its slot", () => {
  const model = fed(
    added("r", 11, { owner: "ann" }), admitted("r", 11, [0], "ann"), added("r", 12, { owner: "bob" }), admitted("r", 12, [1], "bob"),
    step("r", 13, 14, { sequence: { slot: 0 } }),
  );
  const tokens = [...model.live.values()].map(({ owner, completion_tokens: n }) => [owner, n]);
  assert.deepEqual(tokens, [["ann", 4], ["bob", 0]]);
});

// -- the time before the page was opened

const listedEnded = (id, times, fields = {}) => entryOf(id, {
  status: "finished", phase: "decode", finish_reason: "stop", prompt_tokens_done: 100, completion_tokens: 40, created: EPOCH + times.arrived, ...fields, times,
});
function opened(requests, fields = {}) {
  const model = new Model();
  model.take(snapshot({ at: 60, epoch: EPOCH + 60, requests, ...fields }), 0);
  return model;
}
const drawn = (lane) => lane.map(({ kind, at, until, entry }) => [entry.id, kind, at - EPOCH, until - EPOCH]);

test("a page that is opened draws what the server remembers", () => {
  const model = opened([
    entryOf("live", { status: "running", phase: "decode", slots: [7], prompt_tokens_done: 100, completion_tokens: 8, created: EPOCH + 50, times: { arrived: 50, admitted: 52, first_token: 54 } }),
    entryOf("waits", { created: EPOCH + 58, times: { arrived: 58 } }),
    listedEnded("a", { arrived: 30, admitted: 31, first_token: 33, ended: 40 }),
    listedEnded("b", { arrived: 32, admitted: 34, first_token: 36, ended: 44 }),
  ]);
  assert.deepEqual(drawn(model.lanes.slots[0]), [["a", "prefill", 31, 33], ["a", "decode", 33, 40], ["live", "prefill", 52, 54], ["live", "decode", 54, 60]]);
  assert.deepEqual(drawn(model.lanes.slots[1]), [["b", "prefill", 34, 36], ["b", "decode", 36, 44]]);
  assert.deepEqual(model.lanes.queue.map(({ entry, at, until, row }) => [entry.id, at - EPOCH, until - EPOCH, row]), [
    ["a", 30, 31, 0], ["b", 32, 34, 0], ["live", 50, 52, 0], ["waits", 58, Infinity, 0],
  ]);
  model.take(step("live", 60, 61, { sequence: { slot: 7 } }), 0);
  assert.deepEqual(drawn(model.lanes.slots[0]).at(-1), ["live", "decode", 60, 61]);
  assert.equal(Math.round(model.series.rate(EPOCH + 40, "decode", 4)), 11, "40 tokens in 7 s, and as many in 8 s");
  assert.deepEqual(model.series.last(EPOCH + 60, "waiting", 10), [1, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
});

test("cancels before the page was opened are marks with their latency", () => {
  const cancel = { status: "cancelled", finish_reason: "cancelled", cancel_reason: "explicit", cancel_latency_ms: 20 };
  const model = opened([
    entryOf("now", { status: "cancelling", phase: "decode", slots: [3], cancel_reason: "explicit", times: { arrived: 50, admitted: 51, first_token: 52, cancelled: 59 } }),
    listedEnded("queued", { arrived: 30, admitted: null, first_token: null, cancelled: 31, ended: 31.5 }, cancel),
    listedEnded("ran", { arrived: 35, admitted: 35, first_token: 36, cancelled: 40, ended: 40.5 }, cancel),
  ]);
  const marks = model.lanes.marks.map(({ entry, at, until, slots, row }) => [entry.id, at - EPOCH, until === null ? null : Math.round(1000 * (until - at)), slots, row]);
  assert.deepEqual(marks, [["queued", 31, 20, [], 0], ["ran", 40, 20, [0], null], ["now", 59, null, [0], null]]);
  assert.deepEqual(model.latencies.map(({ ms }) => ms), [20, 20]);
  model.take(ended("now", 60.1, { ...cancel, created: EPOCH + 10, times: { arrived: 50, cancelled: 59 } }), 0);
  assert.ok(Math.abs(model.lanes.marks.at(-1).until - EPOCH - 59.02) < 1e-6);
});

test("nothing is known before the server's start, or before the oldest request that it remembers", () => {
  assert.deepEqual(opened([]).since, { at: EPOCH, isStart: true });
  const many = Array.from({ length: 256 }, (_, i) => listedEnded(`r${i}`, { arrived: 20 + i / 10, admitted: 20 + i / 10, first_token: null, ended: 20.05 + i / 10 }));
  const model = opened(many);
  assert.deepEqual(model.since, { at: EPOCH + 20.05, isStart: false });
  assert.equal(model.lanes.slots[0].length, 256);
});

test("more requests than slots at a time, by clocks that differ, are drawn in the slots that there are", () => {
  const overlapping = ["a", "b", "c"].map((id, i) => listedEnded(id, { arrived: 30, admitted: 30 + i / 1e4, first_token: 31, ended: 40 }));
  const model = opened([...overlapping, listedEnded("next", { arrived: 39, admitted: 39.999, first_token: 41, ended: 42 })]);
  assert.equal(model.lanes.slots.length, 2);
  assert.deepEqual(drawn(model.lanes.slots[0]).map(([id]) => id), ["a", "a", "next", "next"]);
  assert.ok(model.lanes.slots.every((lane) => lane.every((block, i) => i === 0 || block.until >= lane[i - 1].until)), "in order of their ends");
});
