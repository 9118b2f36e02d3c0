// The token limit of a suggestion, and the pace of the keys, follow the speed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { scriptOf } from "../../pyllmcancel/page/typing/rhythm.js";
import { paceOf, Size } from "../../pyllmcancel/page/typing/size.js";

const sized = (pace, ...rates) => {
  const size = Object.assign(new Size(), { pace });
  for (const rate of rates) size.learn({ timings: { predicted_per_second: rate } });
  return size;
};

test("a suggestion takes four keys' time, at any pace, within its limits", () => {
  for (const [rate, pace, tokens] of [[2600, 1, 1040], [100, 1, 40], [50, 3, 60], [10, 1, 12], [100_000, 1, 1500]]) assert.equal(sized(pace, rate).tokens, tokens);
});

test("slower answers, and cancelled ones without a speed, do not change it", () => {
  const size = sized(1, 1000, 300);
  size.learn({ outcome: "cancelled" });
  assert.equal(size.tokens, 400);
  size.forget();
  assert.equal(size.tokens, new Size().tokens);
});

test("one types as slowly as a text needs to be seen before the next key, and not for longer in all", () => {
  const seconds = (latency) => scriptOf("", "x".repeat(60), paceOf(latency)).keys.reduce((sum, { delay }) => sum + delay, 0) / 1000;
  const mean = (latency) => scriptOf("", "x".repeat(60), paceOf(latency)).keys.reduce((sum, { delay }, _, { length }) => sum + delay / length, 0);
  for (const latency of [5, 100, 200, 300]) assert.ok(mean(latency) > 1.2 * latency && Math.abs(seconds(latency) - seconds(0)) < 0.1 * seconds(0));
  assert.equal(paceOf(5000), paceOf(6000));
});
