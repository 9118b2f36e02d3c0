// A timeline's canvas: the times of drawing, and the effects of pointer and keys. It is drawn only while it is visible,
// and only when something has moved by a pixel.
import { readPalette } from "./palette.js";
import { hit, layout, runsIn, Window } from "./timeline_layout.js";
import { paint } from "./timeline_paint.js";

const DELAY = 0.4; // seconds behind the server, whose events have come by then
const FASTEST = 33; // milliseconds between two frames
const SHARE = 8; // a frame waits this many times the duration of the last ones: the engine may need the processor
const SLOWEST = 250; // but not longer than this
const SLOW = 1000; // if motion is to be reduced, or nothing moves
const scheme = matchMedia("(prefers-color-scheme: dark)");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class TimelineView {
  #canvas; #ctx; #groups; #onChange; #onPoint;
  #window = new Window();
  #shown = { filter: null, compact: false, onOpen: null };
  #used = new Set(); // slots that the filter's requests have used
  #size = { width: 0 };
  #palette = null;
  #scene = null;
  #hover = null; #focus = null;
  #isVisible = true; #isDirty = true;
  #drawnAt = 0; #frame = 0; #cost = 4;
  #drag = null;
  #closing = new AbortController();

  constructor(canvas, groups, { span, range, onChange, onPoint }) {
    Object.assign(this.#window, range === null ? { span } : { span: range.until - range.at, pausedAt: range.until });
    this.#canvas = canvas;
    this.#ctx = canvas.getContext("2d");
    this.#groups = groups;
    this.#onChange = onChange;
    this.#onPoint = onPoint;
    this.#listen();
    this.#frame = requestAnimationFrame((at) => this.#tick(at));
    this.#changed();
  }

  close() {
    this.#closing.abort();
    cancelAnimationFrame(this.#frame);
  }

  // `groups`: {name, model} of each model whose lanes are drawn, one below the other, from the next frame on. Their clocks
  // are one machine's.
  show({ groups, ...what }) {
    this.#groups = groups;
    this.#shown = what;
  }

  // Zoom around the end of the block that the keys have chosen, as far as it is shown.
  zoom(direction) {
    const end = this.#focus === null ? null : Math.min(this.#focus.block.until, this.#window.pausedAt ?? Infinity);
    this.#window.zoom(direction, end);
    this.#changed();
  }

  togglePause() {
    this.#window.pausedAt = this.#window.pausedAt === null ? this.#now() : null;
    if (this.#window.pausedAt === null) this.#focus = null;
    this.#changed();
  }

  #now() {
    const known = this.#groups.map(({ model }) => model.serverNow()).filter((now) => now !== null);
    return (known.length > 0 ? Math.max(...known) : Date.now() / 1000) - DELAY;
  }

  #shows = (entry) => (this.#shown.filter === null ? true : entry !== null && this.#shown.filter(entry));

  #changed() {
    this.#isDirty = true;
    this.#onChange({ span: this.#window.span, paused: this.#window.pausedAt !== null });
  }

  #listen() {
    const { signal } = this.#closing;
    const on = (name, act, options = {}) => this.#canvas.addEventListener(name, act, { signal, ...options });
    on("pointermove", (event) => this.#moved(event));
    on("pointerdown", (event) => { this.#drag = { x: event.clientX, moved: false, to: this.#window.to(this.#now()) }; });
    on("pointerup", (event) => this.#released(event));
    on("pointercancel", () => { this.#drag = null; });
    on("pointerleave", () => { if (this.#drag === null) this.#point(null); });
    on("wheel", (event) => this.#wheel(event), { passive: false });
    on("keydown", (event) => this.#key(event));
    on("blur", () => { this.#focus = null; this.#point(null); });
    const resized = new ResizeObserver(() => { this.#isDirty = true; });
    const seen = new IntersectionObserver((changes) => {
      // A busy page gets several at once, and the last one counts.
      this.#isVisible = changes.at(-1).isIntersecting;
      this.#isDirty = true;
    });
    scheme.addEventListener("change", () => {
      this.#palette = null;
      this.#isDirty = true;
    }, { signal });
    resized.observe(this.#canvas.parentElement);
    seen.observe(this.#canvas);
    signal.addEventListener("abort", () => { resized.disconnect(); seen.disconnect(); });
  }

  #tick(at) {
    this.#frame = requestAnimationFrame((next) => this.#tick(next));
    if (!this.#isVisible || (!this.#isDirty && at - this.#drawnAt < this.#interval())) return;
    this.#drawnAt = at;
    this.#isDirty = false;
    const began = performance.now();
    this.#draw();
    // Measured after the frame has been put on the screen.
    setTimeout(() => { this.#cost += 0.2 * (performance.now() - began - this.#cost); });
  }

  #interval() {
    const { pausedAt, span } = this.#window;
    if (calm.matches || pausedAt !== null) return SLOW;
    const isQuiet = this.#groups.every(({ model }) => model.live.size === 0 && (model.heard ?? 0) < this.#now() - span);
    return isQuiet ? SLOW : Math.max(FASTEST, (1000 * span) / (this.#size.width || 1), Math.min(SLOWEST, SHARE * this.#cost));
  }

  #draw() {
    const scale = devicePixelRatio || 1;
    this.#size.width = this.#canvas.parentElement.clientWidth;
    if (this.#size.width === 0) return;
    // The colours are read again when their scheme has changed, and the patterns made again for another resolution.
    if (this.#palette?.scale !== scale) this.#palette = { ...readPalette(this.#canvas, scale), scale };
    const { rows, groups, height } = layout(this.#groups, { compact: this.#shown.compact, only: this.#lanes() });
    const { width } = this.#size;
    const pixels = [Math.round(width * scale), Math.round(height * scale)];
    if (this.#canvas.width !== pixels[0] || this.#canvas.height !== pixels[1]) {
      [this.#canvas.width, this.#canvas.height] = pixels;
      this.#canvas.style.height = `${height}px`;
      this.#canvas.parentElement.classList.toggle("tall", rows.length > 25);
    }
    const gutter = width < 500 ? 46 : 58;
    const now = calm.matches ? Math.floor(this.#now()) : this.#now();
    const to = this.#window.to(now), from = to - this.#window.span;
    const perSecond = (width - gutter) / this.#window.span;
    const x = (t) => gutter + (t - from) * perSecond, t = (px) => from + (px - gutter) / perSecond;
    const shared = { rows, groups, width, height, gutter, from, to, now, palette: this.#palette, shows: this.#shows, isWhole: this.#shown.filter === null };
    this.#scene = { ...shared, scale: { x, t, dpr: scale }, hover: this.#hover, focus: this.#focus };
    paint(this.#ctx, this.#scene);
  }

  // null: every lane
  #lanes() {
    if (this.#shown.filter === null || !this.#shown.compact) return null;
    this.#groups[0].model.lanes.slots.forEach((lane, slot) => {
      if (!this.#used.has(slot) && lane.some((block) => this.#shows(block.entry))) this.#used.add(slot);
    });
    return this.#used.size === 0 ? [0] : [...this.#used].sort((a, b) => a - b);
  }

  #at(event) {
    if (this.#scene === null) return null;
    const { left, top } = this.#canvas.getBoundingClientRect();
    const x = event.clientX - left, y = event.clientY - top;
    const found = x < this.#scene.gutter ? null : hit(this.#scene.rows, this.#scene.scale, x, y, this.#shows);
    return found === null ? null : { ...found, x, y, byKey: false };
  }

  #point(found) {
    this.#hover = found;
    this.#isDirty = true;
    this.#canvas.style.cursor = found?.entry && this.#shown.onOpen ? "pointer" : "";
    this.#onPoint(found);
  }

  #moved(event) {
    if (this.#drag === null || event.buttons === 0) return this.#point(this.#at(event));
    const by = event.clientX - this.#drag.x;
    if (!this.#drag.moved && Math.abs(by) < 5) return undefined;
    this.#drag.moved = true;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#window.pausedAt = this.#drag.to;
    this.#window.pan((-by * this.#window.span) / (this.#size.width - this.#scene.gutter), this.#now());
    this.#point(null);
    return this.#changed();
  }

  #released(event) {
    const wasClick = this.#drag !== null && !this.#drag.moved;
    this.#drag = null;
    const found = wasClick ? this.#at(event) : null;
    if (found?.entry) this.#shown.onOpen?.(found.entry);
  }

  // The wheel scrolls the page; only with Ctrl, or sideways, does it move the timeline.
  #wheel(event) {
    if (event.ctrlKey) {
      this.#window.zoom(Math.sign(event.deltaY), this.#scene?.scale.t(event.offsetX) ?? null);
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.#window.pan((event.deltaX * this.#window.span) / this.#size.width, this.#now());
    } else {
      return;
    }
    event.preventDefault();
    this.#changed();
  }

  #key(event) {
    const { span } = this.#window;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key], along = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    if (event.key === " ") this.togglePause();
    else if (event.key === "+" || event.key === "=") this.zoom(-1);
    else if (event.key === "-") this.zoom(1);
    else if (event.key === "Escape" && (this.#focus !== null || this.#window.pausedAt !== null)) this.#follow();
    else if (sideways !== undefined && event.shiftKey) { this.#window.pan((sideways * span) / 4, this.#now()); this.#changed(); }
    else if (sideways !== undefined) this.#choose(0, sideways);
    else if (along !== undefined) this.#choose(along, 0);
    else if (event.key === "Enter" && this.#focus?.entry) this.#shown.onOpen?.(this.#focus.entry);
    else return;
    event.preventDefault();
  }

  #follow() {
    this.#focus = null;
    this.#window.pausedAt = null;
    this.#point(null);
    this.#changed();
  }

  // Go to the next block in a lane, or the nearest one in another; time stands still meanwhile.
  #choose(down, right) {
    if (this.#scene === null) return;
    const { from, to, scale } = this.#scene;
    const rows = this.#scene.rows.filter(({ kind }) => kind !== "name");
    this.#window.pausedAt ??= to;
    const last = this.#focus;
    const at = rows.findIndex((row) => row.key === last?.row.key);
    const row = rows[Math.min(rows.length - 1, Math.max(0, (at < 0 ? Math.min(1, rows.length - 1) : at) + down))];
    const runs = runsIn(row, from, to, this.#shows);
    const t = last === null ? to : (last.block.at + Math.min(last.block.until, to)) / 2;
    const nearest = runs.reduce((best, run, i) => (Math.abs(run.at - t) < Math.abs(runs[best].at - t) ? i : best), 0);
    const same = runs.findIndex((run) => run.entry === last?.entry && run.kind === last.block.kind && run.at === last.block.at);
    const block = runs[Math.min(runs.length - 1, Math.max(0, same < 0 ? nearest : same + right))];
    if (block === undefined) {
      this.#focus = { row, entry: null, block: { kind: "idle", at: t, until: t, entry: null } };
      return this.#say(null);
    }
    this.#focus = { row, entry: block.entry, block };
    const x = Math.max(scale.x(block.at), this.#scene.gutter);
    return this.#say({ ...this.#focus, x, y: row.bar.top + row.bar.height, byKey: true });
  }

  #say(found) {
    this.#onPoint(found);
    this.#changed();
  }
}
