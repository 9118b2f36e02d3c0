// What the page knows of all replicas: a Model of each, and their requests together. A server without peers is one
// replica without a name.
import { Model } from "./model.js";
import { Observable } from "./observable.js";

const MOST_REPLICAS = 64;

export class Fleet {
  events = new Observable(null); // heard after each event
  replicas = new Map(); // by name: {name, model or null: nothing is known of it yet, lost: why, or null}
  first; // of the server that was heard first

  #isLost = false;
  #uids = 0;
  #version = 0;
  #ended = { version: -1, entries: [] };

  constructor() { this.first = this.#made(""); }

  take(event, now) {
    const name = event.replica ?? "";
    this.#version += 1;
    if (event.type === "replica") this.#stands(name, event);
    else if (event.type === "snapshot") this.#modelFor(name)?.take(event, now);
    else this.replicas.get(name)?.model?.take(event, now); // without a snapshot it says nothing
    this.events.set(event);
  }

  // Whether the feed is: of all of them then.
  set lost(lost) {
    this.#isLost = lost;
    for (const one of this.replicas.values()) this.#tell(one);
  }

  named() { return [...this.replicas.values()].filter((one) => one.name !== ""); }

  // The model of the replica of this name; else the first that there is.
  modelOf(name) { return this.replicas.get(name)?.model ?? this.#models()[0] ?? this.first; }

  // -- as one Model's ----------------------------------------------------------------------------------------------

  get server() { return this.first.server; }

  get live() {
    const models = this.#models();
    return models.length === 1 ? models[0].live : new Map(models.flatMap((model) => [...model.live]));
  }

  // Newest last.
  get ended() {
    const models = this.#models();
    if (models.length === 1) return models[0].ended;
    if (this.#ended.version !== this.#version) {
      const entries = models.flatMap((model) => model.ended).sort((a, b) => a.t.ended - b.t.ended);
      this.#ended = { version: this.#version, entries };
    }
    return this.#ended.entries;
  }

  // The newest request of this id.
  find(id) {
    const found = this.#models().map((model) => model.find(id)).filter((entry) => entry !== undefined);
    return found.sort((a, b) => b.live - a.live || b.t.arrived - a.t.arrived)[0];
  }

  // By the clock of the replica that the request is on.
  nowOf(entry) { return this.modelOf(entry.replica).serverNow(); }

  #models() { return [...this.replicas.values()].map((one) => one.model).filter((model) => model !== null); }

  #made(name) { return new Model(name, () => (this.#uids += 1)); }

  #modelFor(name) {
    const alone = this.replicas.get("");
    // It has peers since it was started again, or none any more.
    if (name === "" && alone === undefined) { this.replicas.clear(); this.replicas.set("", { name, model: this.first, lost: null }); }
    if (name !== "" && alone !== undefined) { this.replicas.delete(""); this.first.replica = name; this.replicas.set(name, { ...alone, name }); }
    const known = this.#known(name);
    if (known === null) return null;
    if (known.model === null) known.model = this.first.server === null ? this.first : this.#made(name);
    known.model.replica = name;
    known.lost = null;
    this.#tell(known);
    return known.model;
  }

  #known(name) {
    if (!this.replicas.has(name) && this.replicas.size < MOST_REPLICAS) this.replicas.set(name, { name, model: null, lost: null });
    return this.replicas.get(name) ?? null;
  }

  #stands(name, { state, why }) {
    if (state === "gone") return void this.replicas.delete(name);
    const known = this.#known(name);
    if (known === null) return;
    known.lost = state === "lost" ? (why ?? "is not heard of") : null;
    this.#tell(known);
  }

  #tell({ model, lost }) { if (model !== null) model.lost = this.#isLost || lost !== null; }
}
