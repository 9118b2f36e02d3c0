// The token limit of a suggestion follows the speed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LEAST, MOST, Size } from "../../pyllmcancel/page/typing/size.js";

test("before the speed is known the limit is the least", () => assert.equal(new Size().tokens, LEAST));

test("a suggestion takes a quarter of a second", () => {
  const size = new Size();
  size.learn({ outcome: "finished", timings: { predicted_per_second: 2600 } });
  assert.equal(size.tokens, 650);
});

test("slower answers, and cancelled ones without a speed, do not change it", () => {
  const size = new Size();
  for (const ending of [{ timings: { predicted_per_second: 1000 } }, { timings: { predicted_per_second: 300 } }, { outcome: "cancelled" }]) size.learn(ending);
  assert.equal(size.tokens, 250);
});

test("it is never below the least, nor above what small contexts hold", () => {
  for (const [rate, tokens] of [[10, LEAST], [100_000, MOST]]) {
    const size = new Size();
    size.learn({ timings: { predicted_per_second: rate } });
    assert.equal(size.tokens, tokens);
  }
});
