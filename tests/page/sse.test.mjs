// Server-sent events: what a block of lines says.
import assert from "node:assert/strict";
import { test } from "node:test";
import { parse } from "../../pyllmcancel/page/lib/sse.js";

test("a separator of lines that JSON need not escape is a part of the data", () => {
  assert.equal(parse("data: {\"text\": \"a\u2028b\u2029c\"}").data, "{\"text\": \"a\u2028b\u2029c\"}");
});

test("the fields of a block are told, its comments are not", () => {
  assert.deepEqual(parse(": ping\nid: x-7\nevent: step\ndata: 1\ndata:2"), { id: "x-7", event: "step", data: "1\n2" });
  assert.equal(parse(": ping"), null);
});
