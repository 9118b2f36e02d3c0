// What lists, charts and sentences of the engine's view are made of.
import assert from "node:assert/strict";
import { test } from "node:test";
import { duration, ending, shorten } from "../../pyllmcancel/page/lib/format.js";
import { buckets, quantile } from "../../pyllmcancel/page/lib/histogram.js";
import { Lanes } from "../../pyllmcancel/page/lib/lanes.js";
import { Places } from "../../pyllmcancel/page/lib/places.js";
import { robustTop, Series } from "../../pyllmcancel/page/lib/series.js";
import { draftsOf, phasesOf, storyOf } from "../../pyllmcancel/page/engine/request_story.js";
import { hit, layout, Window } from "../../pyllmcancel/page/engine/timeline_layout.js";

test("a row that has ended keeps its place until a newcomer takes it", () => {
  const places = new Places();
  assert.deepEqual(places.update(["a", "b", "c"], 0), ["a", "b", "c"]);
  assert.deepEqual(places.update(["a", "c"], 1), ["a", "b", "c"]);
  assert.deepEqual(places.update(["a", "c", "d"], 1.1), ["a", "b", "c", "d"], "too soon");
  assert.deepEqual(places.update(["a", "c", "d", "e"], 5), ["a", "e", "c", "d"], "nothing else has moved");
});

test("nothing moves where somebody points", () => {
  const places = new Places();
  const somebody = { held: (item) => item === "b", quiet: false };
  places.update(["a", "b", "c"], 0);
  places.update(["c"], 1, somebody);
  assert.deepEqual(places.update(["c", "d", "e"], 100, somebody), ["d", "b", "c", "e"]);
  assert.deepEqual(places.update(["c"], 101, { quiet: true }).includes("b"), false);
});

test("places are closed when nobody is at the list", () => {
  const places = new Places();
  places.update(["a", "b"], 0);
  places.update(["b"], 1);
  assert.deepEqual(places.update(["b"], 2), ["a", "b"]);
  assert.deepEqual(places.update(["b"], 60), ["b"]);
});

test("no more rows than were asked for", () => {
  const places = new Places();
  assert.equal(places.update(Array.from({ length: 50 }, (_, i) => i), 0, { most: 16 }).length, 16);
});

test("buckets grow by the logarithm, and hold every value once", () => {
  const found = buckets([0.04, 1.9, 1.9, 12, 9999]);
  assert.equal(found.reduce((sum, one) => sum + one.n, 0), 5);
  assert.deepEqual(found.filter((one) => one.n > 0).map((one) => [one.to, one.n]), [[0.1, 1], [2, 2], [20, 1], [Infinity, 1]]);
  assert.deepEqual(buckets([]), []);
});

test("quantiles are values that there were", () => {
  const values = Array.from({ length: 100 }, (_, i) => 100 - i);
  assert.deepEqual([quantile(values, 0.5), quantile(values, 0.99), quantile([7], 0.99), quantile([], 0.5)], [50, 99, 7, null]);
});

test("one spike does not flatten a chart", () => {
  const usual = Array.from({ length: 59 }, () => 100);
  assert.equal(robustTop([...usual, 100_000]), 150);
  assert.equal(robustTop([...usual, 180]), 180);
  assert.equal(robustTop([]), 1);
});

test("tokens are spread over the seconds in which they were computed", () => {
  const series = new Series(10);
  series.add(100.5, 102.5, "decode", 40);
  assert.deepEqual(series.last(103, "decode", 3).map(Math.round), [10, 20, 10]);
  assert.equal(Math.round(series.rate(103, "decode", 2)), 15);
});

test("waiting requests have lines of their own, which are used again", () => {
  const lanes = new Lanes();
  const [a, b, c] = [{ slots: [] }, { slots: [] }, { slots: [] }];
  lanes.waits(a, 1);
  lanes.waits(b, 2);
  lanes.waitedUntil(a, 3);
  lanes.waits(c, 4);
  assert.deepEqual(lanes.queue.map((block) => [block.row, block.until]), [[0, 3], [1, Infinity], [0, Infinity]]);
});

const cancelledEntry = {
  id: "r", live: false, lost: null, status: "cancelled", cancel_reason: "superseded", superseded_by: "s", cancel_latency_ms: 1.9, slots: [2],
  prompt_tokens: 10, cached_tokens: 4, finish_reason: "cancelled", error: null,
  t: { arrived: 100, admitted: 101, first_token: 103, cancelled: 104, ended: 104.0019 },
};

test("an ended request says why and how fast", () => {
  assert.equal(ending(cancelledEntry), "superseded by s, compute stopped after 1.9 ms");
  assert.equal(ending({ ...cancelledEntry, t: { ...cancelledEntry.t, admitted: null } }), "superseded by s, left the queue after 1.9 ms");
  assert.equal(ending({ ...cancelledEntry, lost: "restarted" , status: "lost", cancel_latency_ms: null }), "the server restarted");
});

test("a request's life in phases, of which none overlaps the next", () => {
  const phases = phasesOf(cancelledEntry, 200);
  assert.deepEqual(phases.map((one) => one.kind), ["waiting", "prefill", "decode", "cancel"]);
  assert.ok(Math.abs(phases.reduce((sum, one) => sum + one.seconds, 0) - 4.0019) < 1e-9);
  const queued = phasesOf({ cancel_latency_ms: null, t: { arrived: 1, admitted: null, first_token: null, cancelled: 3, ended: 3.5 } }, 9);
  assert.deepEqual(queued.map((one) => [one.kind, one.seconds]), [["waiting", 2], ["cancel", 0.5]]);
  assert.equal(storyOf(cancelledEntry).find((one) => one.link !== null).link, "s");
});

test("a request's story says how many drafted tokens were accepted, and where they came from", () => {
  const drafts = [{ source: "past", drafted: 40, accepted: 40 }, { source: "ngram", drafted: 8, accepted: 3 }];
  const entry = { ...cancelledEntry, drafts };
  assert.deepEqual(draftsOf(entry), { accepted: 43, drafted: 48, sources: "earlier answers 40 of 40, prompt and answer 3 of 8" });
  assert.ok(storyOf(entry).some((one) => one.text === "43 of 48 drafted tokens were accepted"));
  assert.equal(draftsOf(cancelledEntry), null, "an older server does not say");
  assert.equal(draftsOf({ drafts: [{ source: "prediction", drafted: 0, accepted: 0 }] }), null);
});

test("durations have digits that mean something", () => {
  assert.deepEqual([0.0019, 0.25, 3.14159, 65, 7200, null].map(duration), ["1.9 ms", "250 ms", "3.14 s", "1 min 5 s", "2 h 0 min", "–"]);
});

test("a long name keeps its beginning and its end, and no half letters", () => {
  const text = shorten("😀".repeat(40), 10);
  assert.deepEqual([[...text].length, text.includes("…"), /\p{Surrogate}/u.test(text)], [10, true, false]);
  assert.equal(shorten("short"), "short");
});

test("what is at a point of the timeline is found", () => {
  const lanes = new Lanes();
  const entry = { slots: [0] };
  lanes.step({ kind: "decode", entry, choice: 0, at: 10, until: 12, busy: 2, tokens: 4, steps: 1, number: 1 }, 0);
  const model = { lanes };
  const { rows } = layout([{ name: "", model }], { compact: false, only: null });
  const scale = { x: (t) => 10 * t, t: (x) => x / 10 };
  const y = rows[1].bar.top + 5;
  assert.equal(hit(rows, scale, 110, y, () => true).entry, entry);
  assert.equal(hit(rows, scale, 150, y, () => true), null);
  assert.equal(hit(rows, scale, 110, y, () => false), null, "a filter hides what it hides from the pointer, too");
});

test("the lanes of several models are groups with names, and each lane is its model's", () => {
  const groups = ["chat", "coder"].map((name) => {
    const lanes = new Lanes();
    const entry = { id: name, slots: [0] };
    lanes.step({ kind: "decode", entry, choice: 0, at: 10, until: 12, busy: 2, tokens: 4, steps: 1, number: 1 }, 0);
    return { name, model: { lanes } };
  });
  const { rows, groups: drawn } = layout(groups, { compact: false, only: null });
  assert.deepEqual(rows.map(({ kind, key }) => [kind, key]), [
    ["name", "chat, chat"], ["queue", "chat, queue"], ["slot", "chat, slot 0"], ["name", "coder, coder"], ["queue", "coder, queue"], ["slot", "coder, slot 0"]]);
  const scale = { x: (t) => 10 * t, t: (x) => x / 10 };
  const at = (row) => hit(rows, scale, 110, row.bar.top + 5, () => true)?.entry.id;
  assert.deepEqual(rows.map(at), [undefined, undefined, "chat", undefined, undefined, "coder"]);
  assert.deepEqual(drawn.map(({ top, height }) => [top, top + height]), [[rows[1].top, rows[3].top], [rows[4].top, rows[5].top + rows[5].height]]);
});

test("zoom goes in steps, and moving stays within what is kept", () => {
  const time = new Window();
  time.zoom(-1);
  assert.equal(time.span, 10);
  for (let i = 0; i < 30; i += 1) time.zoom(1);
  assert.equal(time.span, 300);
  time.pan(100, 1000);
  assert.equal(time.to(1000), 1000);
  time.pan(-10_000, 1000);
  assert.ok(time.to(1000) >= 700);
});
