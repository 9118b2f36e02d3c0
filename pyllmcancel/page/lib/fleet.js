// All replicas as the page knows them: a Model of each, and their requests together. A server without peers is one
// replica without a name. A server of several models has a replica for each loaded one, and lists all models.
import { Model } from "./model.js";
import { Observable } from "./observable.js";
import { cap } from "./ring.js";
import { Waiting } from "./waiting.js";

const MAX_REPLICAS = 64, MAX_PAST = 200;

export class Fleet {
  events = new Observable(null); // notified after each event
  replicas = new Map(); // by name: {name, model or null if nothing is known of it yet, lost: the reason, or null}
  first; // the replica that the page is connected to
  served = new Observable(null); // the last event `models`; null: the server has one model

  // set at the feed's start: the replicas that it has named, and whether it starts anew, until all are named
  #beginning = null;
  #isLost = false;
  #uids = 0;
  #version = 0;
  #ended = { version: -1, entries: [] };
  #past = []; // requests that ended on replicas that are gone
  #waiting = new Waiting(() => (this.#uids += 1));

  constructor() {
    this.first = this.#made("");
    this.begin();
  }

  // Read a feed from here on: another one, or the same one where it was.
  begin() { this.#beginning = { named: new Set(), anew: false }; }

  take(event, now, id = "") {
    const name = event.replica ?? "";
    this.#version += 1;
    if (event.type === "models") return this.#serves(event);
    if (this.#beginning !== null) this.#begin(name, event.type, id);
    if (event.type === "replica") this.#stands(name, event);
    else if (event.type === "snapshot") this.#modelFor(name)?.take(event, now);
    else this.replicas.get(name)?.model?.take(event, now); // without a snapshot the event has no meaning
    this.events.set(event);
  }

  // Set whether the feed is lost, for all replicas at once.
  set lost(lost) {
    this.#isLost = lost;
    for (const one of this.replicas.values()) this.#tell(one);
  }

  named() { return [...this.replicas.values()].filter((one) => one.name !== ""); }

  // Return the model of the replica of this name, else the first one.
  modelOf(name) { return this.replicas.get(name)?.model ?? this.#models()[0] ?? this.first; }

  // -- as one Model's -----------------------------------------------------------------------------------------------

  get server() { return this.first.server; }

  get live() {
    const models = this.#models(), waiting = this.#waiting.live;
    return models.length === 1 && waiting.size === 0 ? models[0].live : new Map([...waiting, ...models.flatMap((model) => [...model.live])]);
  }

  // Newest last.
  get ended() {
    const models = this.#models();
    if (models.length === 1 && this.#past.length === 0) return models[0].ended;
    if (this.#ended.version !== this.#version) {
      const entries = [...this.#past, ...models.flatMap((model) => model.ended)].sort((a, b) => a.t.ended - b.t.ended);
      this.#ended = { version: this.#version, entries };
    }
    return this.#ended.entries;
  }

  // Return the newest request of this id.
  find(id) {
    const found = this.#models().map((model) => model.find(id)).filter((entry) => entry !== undefined);
    if (found.length === 0) return this.#waiting.find(id) ?? this.#past.findLast((entry) => entry.id === id);
    return found.sort((a, b) => b.live - a.live || b.t.arrived - a.t.arrived)[0];
  }

  // Return the present time by the clock of the request's replica.
  nowOf(entry) { return this.modelOf(entry.replica).serverNow() ?? Date.now() / 1000; }

  // Return what is known of a model's processes: the name of each, and its Model.
  groupsOf(served) {
    return processesOf(served).map(({ name }) => ({ name, model: this.replicas.get(name)?.model ?? null })).filter(({ model }) => model !== null);
  }

  #models() { return [...this.replicas.values()].map((one) => one.model).filter((model) => model !== null); }

  #made(name) { return new Model(name, () => (this.#uids += 1)); }

  // A feed that starts anew has a snapshot of the connected server first. Then it names all others, the last one with
  // an id.
  #begin(name, type, id) {
    const beginning = this.#beginning;
    if (type === "snapshot" && !beginning.anew) {
      beginning.anew = true;
      this.#ask(name);
    }
    if (type === "snapshot" || type === "replica") beginning.named.add(name);
    if (id === "") return;
    this.#beginning = null;
    if (beginning.anew) for (const one of this.replicas.keys()) if (!beginning.named.has(one)) this.#remove(one);
  }

  // Note the connected server's name: it may be another one now, or may have got peers, or lost them.
  #ask(name) {
    const known = this.replicas.get(name)?.model ?? null;
    if (known === this.first) return;
    if (name !== "" && this.first.replica !== "") {
      this.first = known ?? this.#made(name);
    } else {
      this.replicas.delete(this.first.replica);
      this.first.replica = name;
    }
    this.replicas.delete(name);
    this.replicas = new Map([[name, { name, model: this.first, lost: null }], ...this.replicas]);
  }

  // Take the list of all models. A model that is not loaded has no replica, but for as long as it has requests.
  #serves(event) {
    const processes = event.models.flatMap(processesOf);
    const there = new Set(processes.filter(({ status, running = 0 }) => status.value === "loaded" || running > 0).map(({ name }) => name));
    for (const name of [...this.replicas.keys()]) if (!there.has(name)) this.#remove(name);
    this.#waiting.take(event.requests, (id) => this.#models().some((model) => model.find(id)?.live));
    this.served.set(event);
    this.events.set(event);
  }

  #remove(name) {
    const model = this.replicas.get(name)?.model ?? null;
    this.replicas.delete(name);
    if (model === null) return;
    this.#past.push(...model.ended);
    cap(this.#past, MAX_PAST);
  }

  #modelFor(name) {
    const known = this.#known(name);
    if (known === null) return null;
    known.model ??= this.#made(name);
    known.lost = null;
    this.#tell(known);
    return known.model;
  }

  #known(name) {
    if (!this.replicas.has(name) && this.replicas.size < MAX_REPLICAS) this.replicas.set(name, { name, model: null, lost: null });
    return this.replicas.get(name) ?? null;
  }

  #stands(name, { state, why }) {
    if (state === "gone") return this.#remove(name);
    const known = this.#known(name);
    if (known === null) return;
    known.lost = state === "lost" ? (why ?? "has sent nothing") : null;
    this.#tell(known);
  }

  #tell({ model, lost }) { if (model !== null) model.lost = this.#isLost || lost !== null; }
}

// Return the processes of a model: its replicas, or the only one.
function processesOf({ replica, status, running, replicas = [{ name: replica, status, running }] }) {
  return replicas;
}
