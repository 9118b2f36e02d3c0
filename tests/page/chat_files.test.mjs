// Text files that a person attaches.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_TEXT, readText } from "../../pyllmcancel/page/chat/files.js";

test("a text file is read", async () => {
  assert.deepEqual(await readText(new File(["ä = 1\n"], "a.py")), { name: "a.py", text: "ä = 1\n" });
});

test("what is no text, nothing, or too much is refused in words", async () => {
  await assert.rejects(readText(new File([new Uint8Array([0xff, 0xfe, 0x00])], "a.png")), /a\.png is not a text file in UTF-8/);
  await assert.rejects(readText(new File(["a\0b"], "a.bin")), /a\.bin is not a text file/);
  await assert.rejects(readText(new File([], "a.txt")), /a\.txt is empty/);
  await assert.rejects(readText(new File(["x".repeat(MAX_TEXT + 1)], "a.txt")), /a\.txt has more than 1 MiB/);
});
