// All replicas: whose event it is, requests together, and replicas that go.
import { deepEqual, equal } from "node:assert/strict";
import { test } from "node:test";
import { Fleet } from "../../pyllmcancel/page/lib/fleet.js";

const TIMES = { arrived: null, admitted: null, first_token: null, cancelled: null, ended: null };

function entry(id, at, more = {}) {
  const { times = {}, ...fields } = more;
  return {
    id, owner: "", status: "waiting", phase: "waiting", session: null, parent_session: null, supersede: null, slots: [], created: at, seconds: 0,
    prompt_tokens: 10, prompt_tokens_done: 0, cached_tokens: 0, completion_tokens: 0, max_tokens: 5, finish_reason: null, cancel_reason: null,
    superseded_by: null, cancel_latency_ms: null, times: { ...TIMES, arrived: at, ...times }, ...fields,
  };
}

const snapshot = (replica, more = {}) => ({
  type: "snapshot", at: 10, epoch: 1010, server: { version: "1", boot: `boot-${replica}`, started: 1000 }, model: { id: "m" },
  capacity: { slots: 2, cells: 100, n_ctx: 100 }, all_owners: true, sessions: [], requests: [], ...(replica && { replica }), ...more,
});
const added = (replica, id, at) => ({ type: "added", at, request: entry(id, at), replica });
const over = (id, at, ended) => entry(id, at, { status: "finished", finish_reason: "stop", times: { ended } });
const ended = (replica, id, at, end) => ({ type: "ended", at: end, request: over(id, at, end), replica });

function fed(...events) {
  const fleet = new Fleet();
  for (const event of events) fleet.take(event, 0);
  return fleet;
}

test("requests of all replicas are one list, each by its own replica", () => {
  const fleet = fed(snapshot("one"), snapshot("two"), added("two", "r2", 11), added("one", "r1", 12), added("one", "late", 13));
  deepEqual([...fleet.live.values()].map(({ id, replica }) => [id, replica]), [["r1", "one"], ["late", "one"], ["r2", "two"]]);
  equal(new Set([...fleet.live.keys()]).size, 3);
  fleet.take(ended("one", "r1", 12, 15), 0);
  fleet.take(ended("two", "r2", 11, 14), 0);
  deepEqual(fleet.ended.map(({ id }) => id), ["r2", "r1"]);
  equal(fleet.find("late").replica, "one");
  equal(fleet.modelOf("two").find("late"), undefined);
});

test("a live request goes before one that has ended elsewhere", () => {
  const fleet = fed(snapshot("one"), snapshot("two"), added("one", "r", 11), added("two", "r", 12), ended("two", "r", 12, 13));
  equal(fleet.find("r").replica, "one");
});

test("a server of one model is one replica without a name", () => {
  const fleet = fed(snapshot(""), { ...added(undefined, "r", 11), replica: undefined });
  deepEqual([fleet.names, fleet.find("r").replica, fleet.modelOf("") === fleet.first], [[], "", true]);
});

test("what is told of a replica before its snapshot is passed over", () => {
  const fleet = fed(snapshot("one"), added("two", "r", 11));
  deepEqual([fleet.live.size, fleet.names], [0, ["one"]]);
});

test("a lost feed is that of all replicas", () => {
  const fleet = fed(snapshot("one"), snapshot("two"));
  fleet.lost = true;
  fleet.take(snapshot("three"), 0);
  deepEqual(["one", "two", "three"].map((name) => fleet.modelOf(name).lost), [true, true, true]);
  fleet.lost = false;
  deepEqual(["one", "two", "three"].map((name) => fleet.modelOf(name).lost), [false, false, false]);
});

test("a front takes the place of a server of one model, and the other way round", () => {
  const fleet = fed(snapshot(""), models([served("one", "loaded")]), snapshot("one"));
  deepEqual([fleet.names, fleet.modelOf("one") === fleet.first, fleet.server.server.boot], [["one"], true, "boot-one"]);
  fleet.take(snapshot(""), 0);
  deepEqual([fleet.names, fleet.modelOf("") === fleet.first, fleet.first.replica, fleet.served.value], [[], true, "", null]);
});

const names = (fleet) => fleet.names;

test("a step that a snapshot has is not counted again", () => {
  const model = fed(snapshot("one"), added("one", "r", 10.5)).first;
  const sequences = [{ request: "r", choice: 0, slot: 0, phase: "decode", n_tokens: 1 }];
  const step = (at, until) => ({ type: "step", replica: "one", number: 1, n_steps: 1, at, until, busy: 0.1, status: "ok", wasted: 0, sequences });
  model.take(step(9.5, 10), 0);
  model.take(step(10.6, 10.7), 0);
  equal(model.find("r").completion_tokens, 1);
});

test("more replicas than anybody has are not kept", () => {
  const fleet = fed(...Array.from({ length: 100 }, (_, i) => snapshot(`r${i}`)));
  equal(fleet.names.length, 64);
});

const served = (id, value, more = {}) => ({ id, replica: id, aliases: [], default: false, status: { value }, ...more });
const models = (list, more = {}) => ({ type: "models", manages: true, models: list, requests: [], ...more });

test("each loaded model of a server is a replica; one that is unloaded is none, and its ended requests stay", () => {
  const fleet = fed(models([served("chat", "loaded"), served("coder", "loaded")]), snapshot("chat"), snapshot("coder"));
  deepEqual(names(fleet), ["chat", "coder"]);
  fleet.take(added("chat", "r", 11), 0);
  fleet.take(ended("chat", "r", 11, 12), 0);
  fleet.take(models([served("chat", "unloaded", { running: 1 }), served("coder", "loaded")]), 0);
  deepEqual(names(fleet), ["chat", "coder"], "it ends when its requests have");
  fleet.take(models([served("chat", "unloaded", { running: 0 }), served("coder", "loaded")]), 0);
  deepEqual([names(fleet), fleet.ended.map(({ id }) => id), fleet.find("r").id], [["coder"], ["r"], "r"]);
});

test("a model's replicas stay as long as each is loaded, and are its groups of lanes", () => {
  const state = (name, value) => ({ name, status: { value } });
  const chat = (second) => served("chat", "loaded", { replicas: [state("chat", "loaded"), state("chat:2", second)] });
  const fleet = fed(models([chat("loaded")]), snapshot("chat"), snapshot("chat:2"));
  const groups = () => fleet.groupsOf(fleet.served.value.models[0]).map(({ name }) => name);
  deepEqual([names(fleet), groups()], [["chat", "chat:2"], ["chat", "chat:2"]]);
  fleet.take(models([chat("unloaded")]), 0);
  deepEqual([names(fleet), groups()], [["chat"], ["chat"]]);
});

test("the feed goes on with another model's process, of which what is known is kept", () => {
  const fleet = fed(models([served("chat", "loaded"), served("coder", "loaded")]), snapshot("chat"), snapshot("coder"), added("coder", "r", 11));
  const coder = fleet.modelOf("coder");
  fleet.take(models([served("chat", "unloaded"), served("coder", "loaded")]), 0);
  fleet.take(snapshot("coder", { requests: [entry("r", 11)] }), 0);
  deepEqual([fleet.first === coder, names(fleet), fleet.live.size], [true, ["coder"], 1]);
  fleet.take(models([served("chat", "unloaded"), served("coder", "unloaded")]), 0);
  fleet.take(models([served("chat", "loaded"), served("coder", "unloaded")]), 0);
  fleet.take(snapshot("chat"), 0);
  deepEqual([names(fleet), fleet.first.replica, fleet.first === coder], [["chat"], "chat", false]);
});

test("a request that waits for its model is live, until its model has it or it has left", () => {
  const waits = (id) => ({ ...entry(id, 11), replica: "slow", phase: "loading" });
  const list = [served("chat", "loaded"), served("slow", "loading")];
  const fleet = fed(models(list, { requests: [waits("one"), waits("two")] }), snapshot("chat"));
  const [one, two] = [fleet.find("one"), fleet.find("two")];
  deepEqual([[...fleet.live.values()].map(({ id }) => id), one.live, one.replica], [["one", "two"], true, "slow"]);
  fleet.take(models(list, { requests: [waits("two")] }), 0);
  deepEqual([one.live, one.lost, fleet.find("two") === two, fleet.live.size], [false, "left", true, 1]);
  fleet.take(snapshot("slow"), 0);
  fleet.take(added("slow", "two", 12), 0);
  fleet.take(models([served("chat", "loaded"), served("slow", "loaded")]), 0);
  deepEqual([two.live, two.lost, fleet.live.size, fleet.find("two").live], [false, "loaded", 1, true]);
});
