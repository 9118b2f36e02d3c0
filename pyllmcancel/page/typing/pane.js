// One editor's requests: those that are sent, those that wait here, and their results. It uses no page and no network
// itself.
import { Observable } from "../lib/observable.js";
import { placeOf, shownOf } from "./ghost.js";

// A browser opens six connections to a server: one is for the feed, and one must stay free for a cancel. Requests
// beyond the other four wait here, and not at the server, which may be somebody else's.
export const LIMITS = { inFlight: 4, waiting: 60, lifetime: 30_000 };

export class Pane {
  changed = new Observable(0);   // notified after each key, and at most once per frame while answers come
  text = "";
  caret = 0;
  requests = [];                 // all requests of this run, oldest first
  mostOpen = 0;
  unsent = 0;                    // keys without a request, because too many waited
  note = null;                   // the result of the last stop: {stopped, latency, why}

  #page;
  #drawing = false;
  #dismissed = true;
  #deadline = null;
  #numbered = 0;
  #run = 0;

  // ask(request, {signal, onPiece}) resolves to an ending (completing.js); stopOne(id) to milliseconds, stopAll() to
  // {latency, reached}: those of the slowest, and the ids of those that it has cancelled; frame(call) calls before the next drawing; alarm(call, ms) calls later, and returns what forgets it.
  constructor({ name, supersedes, ...page }) {
    this.name = name;
    this.supersedes = supersedes;
    this.#page = page;
  }

  get newest() { return this.requests.at(-1) ?? null; }
  get open() { return this.requests.filter((request) => request.endedAt === null); }
  get isIdle() { return this.open.length === 0; }

  // The grey text; "" if there is none.
  get suggestion() {
    const place = placeOf(this.text, this.caret);
    if (place === null || this.#dismissed || this.newest === null) return "";
    return shownOf(this.newest.text, place.lines);
  }

  // The error of the newest request; null if it did not fail.
  get problem() { return this.newest?.ending?.outcome === "failed" ? this.newest.ending.problem : null; }

  // Take a new text without a request, and forget the last run; open requests are cancelled.
  begin(text) {
    this.stop("begin");
    this.requests = [];
    this.mostOpen = this.unsent = 0;
    this.note = null;
    this.#run += 1;
    this.put(text, text.length);
  }

  // Note that the text or the caret has changed, without a request.
  put(text, caret) {
    if (text !== this.text || caret !== this.caret) this.dismiss();
    this.text = text;
    this.caret = caret;
    this.#drawNow();
  }

  // Take a pressed key: request a completion of its text; earlier requests become obsolete.
  type(text, caret) {
    this.text = text;
    this.caret = caret;
    this.note = null;
    this.#outdate();
    const place = placeOf(text, caret);
    this.#dismissed = place === null;
    if (place !== null) this.#add(place);
    else if (this.supersedes) this.#cancelNewest();
    this.#drawNow();
  }

  // Drop the suggestion. A pane that supersedes also cancels; the other one continues for nobody, as such servers do.
  dismiss() {
    if (this.#dismissed) return;
    this.#dismissed = true;
    this.#outdate();
    if (this.supersedes) this.#cancelNewest();
    this.#draw();
  }

  // Cancel all requests; unsent ones are never sent.
  async stop(why = "stop") {
    this.#dismissed = true;
    this.#outdate();
    const open = this.open;
    this.#drawNow();
    if (open.length === 0) return;
    const run = this.#run;
    for (const request of open) if (request.sentAt === null) this.#end(request, { outcome: "unsent" });
    const { latency, reached } = await this.#page.stopAll();
    // A request that was not there yet when the others were cancelled: the server notices that its client has left.
    for (const request of open) if (!reached.includes(request.id)) request.controller.abort();
    if (run === this.#run) this.#tell({ stopped: reached.length, latency, why });
  }

  // Take the feed's event of a request that has ended.
  learn(entry) {
    const request = this.requests.find(({ id }) => id === entry.id);
    if (request === undefined) return;
    request.entry = entry;
    this.#draw();
  }

  #add(place) {
    const waiting = this.requests.filter((request) => request.sentAt === null && request.endedAt === null);
    // Only the newest of requests that supersede each other needs to be sent.
    if (this.supersedes) for (const request of waiting) this.#end(request, { outcome: "unsent" });
    else if (waiting.length >= LIMITS.waiting) { this.unsent += 1; return; }
    const request = {
      id: this.#nextId(), number: this.requests.length + 1, place, after: lastKeys(place.before),
      keyAt: this.#page.now(), sentAt: null, firstAt: null, obsoleteAt: null, endedAt: null,
      text: "", tokens: 0, tokensWhenObsolete: 0, ending: null, entry: null, controller: new AbortController(),
    };
    if (this.isIdle) this.#setDeadline();
    this.requests.push(request);
    this.mostOpen = Math.max(this.mostOpen, this.open.length);
    this.#sendNext();
  }

  #sendNext() {
    const sent = this.open.filter((request) => request.sentAt !== null).length;
    const next = this.open.find((request) => request.sentAt === null);
    if (next === undefined || sent >= LIMITS.inFlight) return;
    next.sentAt = this.#page.now();
    this.#follow(next);
    this.#sendNext();
  }

  async #follow(request) {
    const onPiece = (text) => {
      if (request.endedAt !== null) return;
      request.text += text;
      request.tokens += 1;
      if (request.firstAt === null && request.text.trim() !== "") request.firstAt = this.#page.now();
      this.#draw();
    };
    let ending = await this.#page.ask(request, { signal: request.controller.signal, onPiece });
    while (this.#isOvertaken(request, ending)) {
      Object.assign(request, { id: this.#nextId(), text: "", tokens: 0, firstAt: null });
      ending = await this.#page.ask(request, { signal: request.controller.signal, onPiece });
    }
    this.#end(request, ending);
    this.#sendNext();
  }

  // True if an older request has superseded the newest: it was sent before, on another connection, and arrived later.
  #isOvertaken(request, { code }) {
    return code === "superseded" && request === this.newest && request.endedAt === null && request.obsoleteAt === null;
  }

  #nextId() {
    this.#numbered += 1;
    return `${this.name}-${this.#numbered}`;
  }

  #end(request, ending) {
    if (request.endedAt !== null) return;
    request.endedAt = this.#page.now();
    request.ending = ending;
    if (this.isIdle) this.#deadline?.();
    this.#draw();
  }

  #outdate() {
    const last = this.newest;
    if (last === null || last.obsoleteAt !== null) return;
    // If it had ended before, nothing was computed for nobody.
    last.obsoleteAt = last.endedAt === null ? this.#page.now() : null;
    last.tokensWhenObsolete = last.tokens;
  }

  async #cancelNewest() {
    const request = this.newest;
    if (request === null || request.endedAt !== null) return;
    if (request.sentAt === null) return this.#end(request, { outcome: "unsent" });
    const run = this.#run;
    const latency = await this.#page.stopOne(request.id);
    if (run === this.#run && latency !== null) this.#tell({ stopped: 1, latency, why: "dismissed" });
  }

  #setDeadline() {
    this.#deadline = this.#page.alarm(() => this.stop("deadline"), LIMITS.lifetime);
  }

  #tell(note) {
    this.note = note;
    this.#draw();
  }

  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    this.#page.frame(() => {
      this.#drawing = false;
      this.#drawNow();
    });
  }

  // Another text makes the grey one wrong, so it is removed in the same frame.
  #drawNow() { this.changed.set(this.changed.value + 1); }
}

const SHOWN = 14;

// The end of the line, by which a person recognises the request.
function lastKeys(text) {
  const line = text.slice(text.lastIndexOf("\n") + 1).trimStart();
  return line.length > SHOWN ? `…${line.slice(1 - SHOWN)}` : line;
}
