// The feed: what it does when the server says nothing any more.
import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document = { baseURI: "http://server.test/" };
const { Feed } = await import("../../pyllmcancel/page/lib/feed.js");

const bytes = (text) => new TextEncoder().encode(text);

// Answers in turn with these events, and stays open; notes what was asked.
function serverOf(answers, asked) {
  return async (_, { headers, signal }) => {
    asked.push(headers["Last-Event-ID"] ?? null);
    const text = answers.shift();
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(bytes(text));
        signal.addEventListener("abort", () => controller.error(signal.reason));
      },
    });
    return new Response(body, { status: 200 });
  };
}

const turn = () => new Promise((done) => { setImmediate(done); });
async function until(condition) { while (!condition()) await turn(); }

test("after a minute without a ping it connects again, and goes on where it was", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const asked = [], seen = [], states = [];
  globalThis.fetch = serverOf(["id: a-1\ndata: {\"n\": 1}\n\n", "id: a-2\ndata: {\"n\": 2}\n\n"], asked);
  const feed = new Feed(({ n }) => seen.push(n));
  feed.state.subscribe(() => states.push(feed.state.value));
  feed.run();
  await until(() => seen.length === 1);
  context.mock.timers.tick(59_000);
  await turn();
  assert.equal(asked.length, 1);
  context.mock.timers.tick(1_000);
  await until(() => states.at(-1)?.name === "lost");
  assert.equal(states.at(-1).problem, "the feed was silent for 60 s");
  context.mock.timers.tick(250);
  await until(() => seen.length === 2);
  assert.deepEqual([asked, seen], [[null, "a-1"], [1, 2]]);
});
