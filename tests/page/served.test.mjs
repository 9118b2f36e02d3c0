// The models of a server that has several: their states in words.
import { deepEqual, equal } from "node:assert/strict";
import { test } from "node:test";

globalThis.document = { baseURI: "http://localhost/" }; // the API's base is the page's
const { modelOf, stateOf, stateWords } = await import("../../pyllmcancel/page/lib/served.js");

const model = (status, more = {}) => ({ id: "m", aliases: [], default: false, status, ...more });

test("a state is said in words, with the share of a load as far as it is known", () => {
  const words = (status) => stateWords(model(status));
  equal(words({ value: "loaded" }), "ready");
  equal(words({ value: "unloaded" }), "not loaded");
  equal(words({ value: "sleeping" }), "sleeping");
  equal(words({ value: "loading", stage: "loading", progress: 0.4 }), "loading 40 %");
  equal(words({ value: "loading", stage: "loading", progress: null }), "loading");
  equal(words({ value: "loading", stage: "downloading", progress: 0.004 }), "downloading 0 %");
  equal(words({ value: "loading", stage: "waiting", progress: null }), "waiting for room");
  equal(words({ value: "loading", stage: "waiting", progress: null, reason: "b has requests" }), "waiting for room: b has requests");
  equal(stateOf(model({ value: "unloaded", failed: true, error: "no" })), "failed");
});

test("a model is found by its name, by an alias, or as the default", () => {
  const served = { models: [model({}, { id: "chat", default: true }), model({}, { id: "coder", aliases: ["fim"] })] };
  deepEqual(["chat", "coder", "fim", "", "gone"].map((name) => modelOf(served, name)?.id), ["chat", "coder", "coder", "chat", undefined]);
  equal(modelOf(null, "chat"), null);
});
