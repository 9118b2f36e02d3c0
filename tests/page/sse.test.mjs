// Server-sent events: what lines say, wherever the network cuts them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { eventOf, eventsOf } from "../../pyllmcancel/page/lib/sse.js";

test("a separator of lines that JSON need not escape is a part of the data", () => {
  assert.equal(eventOf(["data: {\"text\": \"a\u2028b\u2029c\"}"]).data, "{\"text\": \"a\u2028b\u2029c\"}");
});

test("the fields of an event are told, its comments are not", () => {
  assert.deepEqual(eventOf([": ping", "id: x-7", "event: step", "data: 1", "data:2"]), { id: "x-7", event: "step", data: "1\n2" });
  assert.equal(eventOf([": ping"]), null);
});

async function read(pieces) {
  const body = new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      controller.close();
    },
  });
  const events = [];
  let n_heard = 0;
  for await (const event of eventsOf(body, () => { n_heard += 1; })) events.push(event);
  return { events, n_heard };
}

for (const [name, end] of [["line feeds", "\n"], ["carriage returns and line feeds", "\r\n"]]) {
  test(`events are the same wherever their bytes are cut, with ${name}`, async () => {
    const lines = [": ping", "", "id: 1", "data: \u00fc\u{1f600}", "", "data: a", "data: b", "", "data: cut off"];
    const bytes = new TextEncoder().encode(lines.join(end) + end);
    const expected = [{ id: "1", event: "message", data: "\u00fc\u{1f600}" }, { id: "", event: "message", data: "a\nb" }];
    for (let at = 0; at <= bytes.length; at += 1) {
      assert.deepEqual((await read([bytes.slice(0, at), bytes.slice(at)])).events, expected);
    }
    assert.deepEqual((await read([...bytes].map((byte) => Uint8Array.of(byte)))).events, expected);
  });
}

test("a ping is heard, and is no event", async () => {
  assert.deepEqual(await read([new TextEncoder().encode(": ping\n\n")]), { events: [], n_heard: 1 });
});
