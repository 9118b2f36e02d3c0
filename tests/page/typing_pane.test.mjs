// The requests of an editor: what is sent, what waits, what is cancelled.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LIMITS, Pane } from "../../pyllmcancel/page/typing/pane.js";

// A pane whose requests, clock, frames and alarms are the test's.
function bench(supersedes) {
  const asked = [], stoppedOne = [], reached = [], alarms = new Set();
  const at = { now: 0, stops: 0 };
  const pane = new Pane({
    name: "p", supersedes,
    ask: (request, { signal, onPiece }) => new Promise((end) => {
      signal.addEventListener("abort", () => end({ outcome: "left" }));
      asked.push({ request, signal, onPiece, end });
    }),
    stopOne: async (id) => { stoppedOne.push(id); return 1.9; },
    stopAll: async () => { at.stops += 1; return { latency: 2.5, reached }; },
    now: () => at.now,
    frame: (draw) => draw(),
    alarm: (ring, delay) => { const entry = { ring, delay }; alarms.add(entry); return () => alarms.delete(entry); },
  });
  const type = (text) => pane.type(text, text.length);
  return { pane, asked, stoppedOne, reached, alarms, at, type };
}

const settled = () => new Promise((done) => { setImmediate(done); });
const outcomes = (pane) => pane.requests.map(({ ending }) => ending?.outcome ?? null);

test("every key is sent at once, and the one before is obsolete", () => {
  const { pane, asked, at, type } = bench(true);
  type("a");
  at.now = 100;
  type("ab");
  assert.deepEqual(asked.map(({ request }) => request.place.before), ["a", "ab"]);
  assert.equal(pane.requests[0].obsoleteAt, 100);
  assert.equal(pane.requests[1].obsoleteAt, null);
});

test("the client never hangs up on what is superseded", () => {
  const { asked, type } = bench(true);
  for (const text of ["a", "ab", "abc"]) type(text);
  assert.ok(asked.every(({ signal }) => !signal.aborted));
});

test("the newest is asked again if an older one arrives later and supersedes it", async () => {
  const { pane, asked, type } = bench(true);
  for (const text of ["a", "ab"]) type(text);
  asked[1].onPiece("lost");
  asked[1].end({ outcome: "cancelled", code: "superseded" });
  await settled();
  assert.deepEqual(asked.map(({ request }) => request.place.before), ["a", "ab", "ab"]);
  assert.equal(pane.newest.id, "p-3");
  assert.equal(pane.suggestion, "");
  asked[2].onPiece("c");
  asked[0].end({ outcome: "cancelled", code: "superseded" });
  asked[2].end({ outcome: "finished" });
  await settled();
  assert.equal(asked.length, 3);
  assert.equal(pane.suggestion, "c");
  assert.deepEqual(outcomes(pane), ["cancelled", "finished"]);
});

test("what is stopped or dismissed is not asked again", async () => {
  for (const leave of [(pane) => pane.stop(), (pane) => pane.dismiss()]) {
    const { pane, asked, type } = bench(true);
    type("a");
    leave(pane);
    asked[0].end({ outcome: "cancelled", code: "superseded" });
    await settled();
    assert.equal(asked.length, 1);
    assert.deepEqual(outcomes(pane), ["cancelled"]);
  }
});

test("only the newest answer is grey text", () => {
  const { pane, asked, type } = bench(false);
  type("a");
  type("ab");
  asked[0].onPiece("old");
  assert.equal(pane.suggestion, "");
  asked[1].onPiece("new");
  assert.equal(pane.suggestion, "new");
});

test("without superseding four are in flight and the others wait their turn", async () => {
  const { pane, asked, type } = bench(false);
  for (const text of ["a", "ab", "abc", "abcd", "abcde", "abcdef"]) type(text);
  assert.equal(asked.length, LIMITS.inFlight);
  assert.equal(pane.mostOpen, 6);
  asked[2].end({ outcome: "finished" });
  await settled();
  assert.equal(asked.length, LIMITS.inFlight + 1);
  assert.equal(asked.at(-1).request.place.before, "abcde");
});

test("with superseding only the newest waits when the network is slow", () => {
  const { pane, asked, type } = bench(true);
  for (const text of ["a", "ab", "abc", "abcd", "abcde", "abcdef"]) type(text);
  assert.equal(asked.length, LIMITS.inFlight);
  assert.deepEqual(outcomes(pane), [null, null, null, null, "unsent", null]);
});

test("not more wait than the limit", () => {
  const { pane, type } = bench(false);
  for (let n = 1; n <= LIMITS.inFlight + LIMITS.waiting + 3; n += 1) type("x".repeat(n));
  assert.equal(pane.open.length, LIMITS.inFlight + LIMITS.waiting);
  assert.equal(pane.unsent, 3);
});

test("a stop cancels what was sent, sends no more, and says how long it took", async () => {
  const { pane, asked, reached, at, type } = bench(false);
  for (const text of ["a", "ab", "abc", "abcd", "abcde"]) type(text);
  reached.push(asked[0].request.id, asked[1].request.id);
  await pane.stop();
  for (const { end } of asked.slice(0, 2)) end({ outcome: "cancelled", code: "explicit" });
  await settled();
  assert.equal(at.stops, 1);
  assert.equal(asked.length, LIMITS.inFlight);
  assert.ok(pane.isIdle);
  assert.deepEqual(pane.note, { stopped: 2, latency: 2.5, why: "stop" });
});

test("a stop hangs up on a request that was not there yet", async () => {
  const { pane, asked, type } = bench(true);
  type("a");
  await pane.stop();
  await settled();
  assert.ok(asked[0].signal.aborted);
  assert.deepEqual(outcomes(pane), ["left"]);
});

test("a stop leaves the stream of what it has cancelled open, which says how it ended", async () => {
  const { pane, asked, reached, type } = bench(true);
  type("a");
  reached.push(asked[0].request.id);
  await pane.stop();
  assert.ok(!asked[0].signal.aborted);
  asked[0].end({ outcome: "cancelled", code: "explicit" });
  await settled();
  assert.deepEqual(outcomes(pane), ["cancelled"]);
});

test("after its time everything is cancelled", async () => {
  const { pane, alarms, at, type } = bench(false);
  type("a");
  type("ab");
  const [alarm] = alarms;
  assert.equal(alarms.size, 1);
  assert.equal(alarm.delay, LIMITS.lifetime);
  alarm.ring();
  await settled();
  assert.equal(at.stops, 1);
  assert.equal(pane.note.why, "deadline");
});

test("the time begins anew when nothing was open", async () => {
  const { alarms, asked, type } = bench(false);
  type("a");
  asked[0].end({ outcome: "finished" });
  await settled();
  assert.equal(alarms.size, 0);
  type("ab");
  assert.equal(alarms.size, 1);
});

test("a dismissal cancels with superseding, and does not without", async () => {
  for (const [supersedes, cancelled] of [[true, ["p-1"]], [false, []]]) {
    const { pane, asked, stoppedOne, type } = bench(supersedes);
    type("a");
    asked[0].onPiece("bc");
    pane.dismiss();
    await settled();
    assert.equal(pane.suggestion, "");
    assert.deepEqual(stoppedOne, cancelled);
  }
});

test("a caret that moves takes the grey text away", () => {
  const { pane, asked, type } = bench(true);
  type("ab");
  asked[0].onPiece("c");
  pane.put("ab", 1);
  assert.equal(pane.suggestion, "");
  pane.put("ab", 2);
  assert.equal(pane.suggestion, "");
});

test("in the middle of a line nothing is asked", () => {
  const { pane, asked } = bench(true);
  pane.type("ab", 1);
  assert.equal(asked.length, 0);
  assert.equal(pane.suggestion, "");
});

test("a new run knows nothing of the last one, not even of its end", async () => {
  const { pane, asked, type } = bench(false);
  type("a");
  pane.begin("start");
  await settled();
  assert.ok(asked[0].signal.aborted);
  assert.deepEqual(pane.requests, []);
  assert.equal(pane.note, null);
  assert.equal(pane.text, "start");
});

test("an id is never used twice", () => {
  const { pane, asked, type } = bench(false);
  type("a");
  pane.begin("");
  type("b");
  assert.notEqual(asked[0].request.id, asked[1].request.id);
});

test("pieces that come after the end change nothing", async () => {
  const { pane, asked, type } = bench(true);
  type("a");
  asked[0].end({ outcome: "cancelled", code: "explicit" });
  await settled();
  asked[0].onPiece("late");
  assert.equal(pane.requests[0].text, "");
});
