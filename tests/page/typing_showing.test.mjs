// "Type for me": the panes' turns.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Observable } from "../../pyllmcancel/page/lib/observable.js";
import { Showing } from "../../pyllmcancel/page/typing/showing.js";

// A pane that is busy from its first key until `rest()`.
class FakePane {
  changed = new Observable(0);
  isIdle = true;
  typed = [];

  begin(text) { this.before = text; }
  type(text) { this.typed.push(text); this.isIdle = false; }
  rest() { this.isIdle = true; this.changed.set(this.changed.value + 1); }
}

const settled = () => new Promise((done) => { setImmediate(done); });
const atOnce = (ring) => { setImmediate(ring); return () => {}; };
const SCRIPT = { before: "x", keys: [{ text: "xy", caret: 2, delay: 5 }, { text: "xyz", caret: 3, delay: 5 }] };

test("the second pane waits until the first one's requests have ended", async () => {
  const [one, two] = [new FakePane(), new FakePane()];
  const showing = new Showing({ alarm: atOnce });
  const over = showing.run([one, two], () => SCRIPT);
  for (let n = 0; n < 8; n += 1) await settled();
  assert.deepEqual([one.typed, two.typed], [["xy", "xyz"], []]);
  assert.equal(showing.state.value.pane, one);
  one.rest();
  for (let n = 0; n < 8; n += 1) await settled();
  assert.deepEqual(two.typed, ["xy", "xyz"]);
  two.rest();
  assert.equal(await over, SCRIPT);
  assert.equal(showing.state.value, null);
});

test("a stop ends it between two keys", async () => {
  const pane = new FakePane();
  const forgotten = [];
  const showing = new Showing({ alarm: (ring, delay) => () => forgotten.push(delay) });
  const over = showing.run([pane], () => SCRIPT);
  await settled();
  showing.stop();
  assert.equal(await over, null);
  assert.deepEqual(pane.typed, []);
  assert.deepEqual(forgotten, [5]);
  assert.equal(showing.state.value, null);
});

test("a stop while the script is made types nothing", async () => {
  const pane = new FakePane();
  const showing = new Showing({ alarm: atOnce });
  let made;
  const over = showing.run([pane], () => new Promise((done) => { made = done; }));
  assert.equal(showing.state.value.pane, null);
  showing.stop();
  made(SCRIPT);
  assert.equal(await over, null);
  assert.deepEqual([pane.typed, showing.state.value], [[], null]);
});
