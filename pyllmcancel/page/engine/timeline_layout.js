// The layout of a timeline: its rows, the window of time, and the object at a point. No drawing.
import { SUMS } from "../lib/lanes.js";

export const AXIS = 20; // height of the axis above the rows
const QUEUE_ROWS = 6; // waiting requests that have a line of their own; the others are counted
const QUEUE_LINE = 6;

const HEADING = 22; // height of a group's name

// Return {rows, groups, height} of groups {name, model}: the lanes of each model, below its name if it has one.
// A row: {kind: "name" | "queue" | "slot", model, slot, label, key, top, height, bar: {top, height}, texts}. A group:
// {model, top, height}.
export function layout(wanted, { compact, only }) {
  const groups = [], rows = [];
  const lanes = wanted.map(({ model }) => (only === null ? [...model.lanes.slots.keys()] : only.filter((slot) => slot < model.lanes.slots.length)));
  const nSlots = lanes.reduce((sum, slots) => sum + slots.length, 0);
  const texts = !compact && nSlots <= 12;
  const height = texts ? 42 : nSlots <= 24 ? 22 : 14;
  const queueLines = compact || wanted.length > 1 ? 3 : QUEUE_ROWS;
  let top = AXIS;
  wanted.forEach(({ name, model }, at) => {
    const add = (row, size, label) => {
      const bar = texts ? { top: top + 16, height: size - 21 } : { top: top + 3, height: size - 5 };
      rows.push({ ...row, model, label, key: name === "" ? label : `${name}, ${label}`, top, height: size, texts, bar });
      top += size;
    };
    if (name !== "") add({ kind: "name", slot: null }, HEADING, name);
    const begin = top;
    add({ kind: "queue", slot: null, lines: queueLines }, QUEUE_LINE * queueLines + 10, "queue");
    for (const slot of lanes[at]) add({ kind: "slot", slot }, height, `slot ${slot}`);
    groups.push({ model, top: begin, height: top - begin });
  });
  return { rows, groups, height: top + 2 };
}

export class Window {
  span = 30;
  pausedAt = null; // the right edge, while the timeline does not follow

  static SPANS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300];

  to(now) { return this.pausedAt ?? now; }

  // Zoom around a moment, while the timeline stands still; null: around the middle.
  zoom(direction, about = null) {
    const { SPANS } = Window;
    const nearest = SPANS.reduce((best, one, i) => (Math.abs(Math.log(one / this.span)) < Math.abs(Math.log(SPANS[best] / this.span)) ? i : best), 0);
    const span = SPANS[Math.min(SPANS.length - 1, Math.max(0, nearest + direction))];
    if (this.pausedAt !== null) {
      // the share of the window to the right of the moment
      const share = about === null ? 0.5 : (this.pausedAt - about) / this.span;
      this.pausedAt += (span - this.span) * Math.min(1, Math.max(0, share));
    }
    this.span = span;
  }

  // Move by seconds, which pauses. The window stays within the time that is kept.
  pan(by, now) { this.pausedAt = Math.min(now, Math.max(now - 300 + this.span / 2, this.to(now) + by)); }
}

export const rowLine = (row, block) => Math.min(block.row, row.lines - 1);
export const lineTop = (row, line) => row.top + 5 + line * QUEUE_LINE;
export const lineHeight = QUEUE_LINE - 2;

// Return the block or cancel at a point; null if there is none. `scale`: {x(t), t(x)}.
export function hit(rows, scale, x, y, shows) {
  const row = rows.find((one) => y >= one.top && y < one.top + one.height);
  if (row === undefined || row.kind === "name") return null;
  const mark = marksOf(row, scale.t(x - 8), scale.t(x + 3), shows).at(-1);
  if (mark !== undefined && (row.kind === "queue" || y < row.bar.top + 4)) return { mark, row, entry: mark.entry };
  const t = scale.t(x), slack = scale.t(x + 2) - t;
  const block = blocksIn(row, t - slack, t + slack, shows).find((one) => row.kind === "slot" || y <= lineTop(row, rowLine(row, one)) + QUEUE_LINE);
  if (block !== undefined) return { block, row, entry: block.entry };
  return mark === undefined ? null : { mark, row, entry: mark.entry };
}

// Return the visible blocks of a row that touch a window of time, oldest first.
export function blocksIn(row, from, to, shows) {
  const { lanes } = row.model;
  const lane = row.kind === "queue" ? lanes.queue : lanes.slots[row.slot] ?? [];
  // A slot's blocks are in order of their ends, the queue's are not.
  const first = row.kind === "queue" ? 0 : lane.findLastIndex((block) => block.until < from) + 1;
  return lane.slice(first).filter(({ at, until, entry }) => at <= to && until >= from && shows(entry));
}

export function marksOf(row, from, to, shows) {
  const isOn = (mark) => (row.kind === "queue" ? mark.slots.length === 0 : mark.slots.includes(row.slot));
  return row.model.lanes.marks.filter((mark) => mark.at <= to && (mark.until ?? Infinity) >= from && isOn(mark) && shows(mark.entry));
}

// Return the same blocks, with adjacent ones of one request and kind merged: the arrow keys go through these.
export function runsIn(row, from, to, shows) {
  const runs = [];
  for (const block of blocksIn(row, from, to, shows)) {
    const last = runs.at(-1);
    if (row.kind === "slot" && last?.entry === block.entry && last.kind === block.kind) {
      last.until = block.until;
      for (const name of SUMS) last[name] += block[name];
    } else {
      runs.push({ ...block });
    }
  }
  return runs;
}
