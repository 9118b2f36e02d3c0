// All replicas as the page knows them: a Model of each, and their requests together. A server of one model is one
// replica without a name. A front has a replica for each worker that serves, and lists all models first.
import { Model } from "./model.js";
import { Observable } from "./observable.js";
import { cap } from "./ring.js";
import { Waiting } from "./waiting.js";

const MAX_REPLICAS = 64, MAX_PAST = 200;

export class Fleet {
  events = new Observable(null); // notified after each event
  replicas = new Map(); // a Model by the name of each
  first; // the replica whose server the page tells about
  served = new Observable(null); // the last event `models`; null: the server has one model

  #isLost = false;
  #uids = 0;
  #past = []; // requests that ended on replicas that are gone
  #waiting = new Waiting(() => (this.#uids += 1));

  constructor() { this.first = this.#made(""); }

  take(event, now) {
    const name = event.replica ?? "";
    if (event.type === "models") return this.#serves(event);
    if (event.type === "snapshot") this.#known(name);
    this.replicas.get(name)?.take(event, now); // without a snapshot the event has no meaning
    this.events.set(event);
  }

  // Set whether the feed is lost, for all replicas at once.
  set lost(lost) {
    this.#isLost = lost;
    for (const model of this.replicas.values()) model.lost = lost;
  }

  // Return the names of all replicas, if they have any.
  get names() { return [...this.replicas.keys()].filter((name) => name !== ""); }

  // Return the model of the replica of this name, else the first one.
  modelOf(name) { return this.replicas.get(name) ?? this.#models()[0] ?? this.first; }

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
    return [...this.#past, ...models.flatMap((model) => model.ended)].sort((a, b) => a.t.ended - b.t.ended);
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
    return processesOf(served).map(({ name }) => ({ name, model: this.replicas.get(name) ?? null })).filter(({ model }) => model !== null);
  }

  #models() { return [...this.replicas.values()]; }

  #made(name) { return new Model(name, () => (this.#uids += 1)); }

  // Note a replica. A server of one model may take the place of a front.
  #known(name) {
    if (name === "") {
      for (const other of this.names) this.#remove(other);
      if (this.served.value !== null) this.served.set(null);
    }
    if (this.replicas.has(name) || this.replicas.size >= MAX_REPLICAS) return;
    const isFirst = this.replicas.size === 0;
    const model = isFirst && this.first.server === null ? this.first : this.#made(name);
    model.replica = name;
    model.lost = this.#isLost;
    if (isFirst) this.first = model;
    this.replicas.set(name, model);
  }

  // Take the list of all models. Those of their processes that do not serve have a replica only while they have requests.
  #serves(event) {
    const processes = event.models.flatMap(processesOf);
    const there = new Set(processes.filter(({ status, running = 0 }) => status.value === "loaded" || running > 0).map(({ name }) => name));
    for (const name of [...this.replicas.keys()]) if (!there.has(name)) this.#remove(name);
    this.#waiting.take(event.requests, (id) => this.#models().some((model) => model.find(id)?.live));
    this.served.set(event);
    this.events.set(event);
  }

  #remove(name) {
    const model = this.replicas.get(name);
    this.replicas.delete(name);
    this.#past.push(...model.ended);
    cap(this.#past, MAX_PAST);
    if (model === this.first) this.first = this.#models()[0] ?? model;
  }
}

// Return the processes of a model: its replicas, or the only one.
function processesOf({ replica, status, running, replicas = [{ name: replica, status, running }] }) {
  return replicas;
}
