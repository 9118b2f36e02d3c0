// Draws a timeline on a canvas. Kinds differ in shape and pattern, not in colour alone: prefill is tall and striped,
// decode low and plain, with a second line above it if tokens were drafted, an aborted step crossed, waiting a thin line, a cancel a flag with its milliseconds.
import { milliseconds, shorten, timeOfDay } from "../lib/format.js";
import { shifted } from "./palette.js";
import { AXIS, blocksIn, lineHeight, lineTop, marksOf, rowLine } from "./timeline_layout.js";

const TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];

// scene: {rows, groups, width, height, gutter, from, to, now, scale: {x, t, dpr}, palette, shows, isWhole, hover, focus}
export function paint(ctx, scene) {
  const { width, height, gutter, palette, scale } = scene;
  ctx.setTransform(scale.dpr, 0, 0, scale.dpr, 0, 0);
  ctx.clearRect(0, 0, width, height);
  ctx.textBaseline = "alphabetic";
  scene.shift = -((scene.from * (width - gutter)) / (scene.to - scene.from)) % 8;
  ctx.save();
  ctx.beginPath();
  ctx.rect(gutter, 0, width - gutter, height);
  ctx.clip();
  axis(ctx, scene);
  for (const row of scene.rows) ground(ctx, scene, row);
  const captions = scene.groups.flatMap((group) => gaps(ctx, scene, group));
  for (const row of scene.rows) {
    if (row.kind === "name") continue;
    if (row.kind === "queue") queue(ctx, scene, row); else slot(ctx, scene, row);
    outline(ctx, scene, row);
  }
  for (const one of captions) caption(ctx, scene, one);
  ctx.restore();
  for (const row of scene.rows) {
    ctx.font = `${row.kind === "name" ? "600 " : ""}12px ${palette.font}`;
    ctx.fillStyle = row.kind === "name" ? palette.text : palette.dim;
    if (row.kind === "name") ctx.fillText(shorten(row.label, Math.floor(width / 8)), 0, row.top + 16, width - 6);
    else if (row.height >= 14) ctx.fillText(row.label, 0, row.kind === "queue" ? row.top + 14 : row.bar.top + row.bar.height / 2 + 4, gutter - 6);
  }
}

function axis(ctx, { from, to, width, gutter, height, palette, scale }) {
  const step = TICKS.find((one) => ((width - gutter) * one) / (to - from) >= 88) ?? 60;
  ctx.font = `11px ${palette.font}`;
  for (let i = Math.ceil(from / step); i * step < to; i += 1) {
    const t = i * step, x = Math.round(scale.x(t)) + 0.5;
    ctx.fillStyle = palette.line;
    ctx.fillRect(x, AXIS - 5, 1, height);
    ctx.fillStyle = palette.dim;
    ctx.fillText(step >= 1 ? timeOfDay(t) : `${timeOfDay(Math.floor(t + 1e-6)).slice(-5)}${(t - Math.floor(t + 1e-6)).toFixed(step >= 0.1 ? 1 : 2).slice(1)}`, x + 4, 12);
  }
}

// The lane's own line, drawn where nothing is computed.
function ground(ctx, { width, gutter, palette }, row) {
  ctx.fillStyle = palette.line;
  ctx.fillRect(gutter, row.top + row.height - 1, width - gutter, 1);
  if (row.kind === "slot") {
    ctx.fillStyle = palette.strong;
    ctx.globalAlpha = 0.5;
    ctx.fillRect(gutter, Math.round(row.bar.top + row.bar.height) - 1, width - gutter, 1);
    ctx.globalAlpha = 1;
  }
}

const GAPS = { restarted: "the server restarted", lost: "the feed was lost", start: "before the server's start", before: "before the oldest request that the server remembers", now: "no connection" };

function gaps(ctx, scene, { model, top, height }) {
  const { from, to, now, palette, scale } = scene;
  const all = [...model.gaps], captions = [];
  if (model.since?.at > from) all.push({ at: from, until: model.since.at, why: model.since.isStart ? "start" : "before" });
  if (model.lost) all.push({ at: model.heard, until: now, why: "now" });
  for (const gap of all) {
    if (gap.until < from || gap.at > to) continue;
    const x0 = Math.max(scale.x(gap.at), scene.gutter), x1 = Math.min(scale.x(gap.until), scene.width);
    const isBefore = gap.why === "before" || gap.why === "start";
    ctx.globalAlpha = isBefore ? 0.6 : 1;
    ctx.fillStyle = isBefore ? palette.sunken : shifted(palette.gapPattern, scale.dpr, scene.shift);
    ctx.fillRect(x0, top, Math.max(2, x1 - x0), height);
    ctx.globalAlpha = 1;
    captions.push({ text: GAPS[gap.why], x0, x1, y: top + height / 2 });
  }
  return captions;
}

// Draw the text in the middle of the gap, or beside a narrow gap.
function caption(ctx, { palette, width, gutter }, { text, x0, x1, y }) {
  ctx.font = `12px ${palette.font}`;
  const w = ctx.measureText(text).width;
  const beside = x1 + w + 24 < width ? x1 + 12 : x0 - w - 12;
  const x = x1 - x0 < w + 20 ? beside : (x0 + x1 - w) / 2;
  if (x < gutter) return;
  ctx.fillStyle = palette.surface;
  ctx.fillRect(x - 8, y - 13, w + 16, 20);
  ctx.fillStyle = palette.text;
  ctx.fillText(text, x, y + 1);
}

function slot(ctx, scene, row) {
  const blocks = blocksIn(row, scene.from, scene.to, scene.shows);
  let run = null;
  const names = [];
  for (const block of blocks) {
    const x0 = scene.scale.x(block.at), x1 = scene.scale.x(block.until);
    if (run !== null && run.kind === block.kind && run.entry === block.entry && x0 - run.x1 < 1.5 && (run.x1 - run.x0 < 3 || x1 - x0 < 3)) {
      run.x1 = Math.max(run.x1, x1);
      run.isDrafted ||= block.drafted > 0;
    } else {
      if (run !== null) box(ctx, scene, row, run);
      run = { kind: block.kind, entry: block.entry, isDrafted: block.drafted > 0, x0, x1 };
    }
    const name = names.at(-1);
    if (name !== undefined && name.entry === block.entry) name.x1 = x1; else names.push({ entry: block.entry, x0, x1 });
  }
  if (run !== null) box(ctx, scene, row, run);
  const marks = marksOf(row, scene.from - 2, scene.to, scene.shows);
  const ends = marks.map((mark, i) => flag(ctx, scene, mark, row.bar.top, row.bar.height, row.texts, marks[i + 1]));
  if (row.texts) nameAll(ctx, scene, row, names, ends);
}

const space = (width) => (width > 4 ? 1 : 0); // between two blocks that can be told apart

function box(ctx, scene, row, { kind, isDrafted, x0, x1 }) {
  const { palette, scale, shift } = scene;
  const width = Math.max(1, x1 - x0 - space(x1 - x0));
  const { top, height } = row.bar;
  if (kind === "decode") {
    const low = Math.max(4, Math.round(height * 0.6));
    ctx.fillStyle = palette.decode;
    ctx.fillRect(x0, top + height - low, width, low);
    if (isDrafted) ctx.fillRect(x0, top + height - low - 4, width, 2); // a second line above
    return;
  }
  const pattern = kind === "prefill" ? palette.prefillPattern : palette.abortedPattern;
  ctx.fillStyle = width < 3 ? palette[kind] : shifted(pattern, scale.dpr, shift);
  ctx.fillRect(x0, top, width, height);
  if (kind === "aborted" && width >= 4) {
    ctx.strokeStyle = palette.aborted;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(x0 + 0.75, top + 0.75, width - 1.5, height - 1.5);
  }
}

// Names above their blocks, if there is room between the cancels' texts.
function nameAll(ctx, { palette, gutter }, row, names, flags) {
  ctx.font = `11px ${palette.font}`;
  ctx.fillStyle = palette.dim;
  for (const { entry, x0, x1 } of names) {
    if (entry === null) continue;
    let left = Math.max(x0, gutter + 2), right = x1;
    for (const one of flags) {
      if (one.x0 <= left && one.x1 > left) left = one.x1 + 6;
      if (one.x0 > left && one.x0 < right) right = one.x0 - 4;
    }
    const fits = Math.floor((right - left) / 6.2);
    if (fits >= 6) ctx.fillText(shorten(entry.id, fits), left, row.bar.top - 4, right - left);
  }
}

// A cancel: a flag at its time, a bar until its computation stopped, and the duration. `next`: the row's next cancel,
// before which the text must end.
function flag(ctx, scene, mark, top, height, texts, next) {
  const { palette, scale, now } = scene;
  const x0 = scale.x(mark.at), x1 = scale.x(mark.until ?? now);
  if (x1 - x0 > 2) {
    ctx.fillStyle = shifted(palette.cancelPattern, scale.dpr, scene.shift);
    ctx.fillRect(x0, top + height - 5, x1 - x0, 5);
    ctx.fillStyle = palette.cancel;
    ctx.fillRect(x1 - 1, top + height - 9, 2, 9);
  }
  ctx.fillStyle = palette.cancel;
  ctx.fillRect(x0 - 1, top - 4, 2, height + 4);
  ctx.beginPath();
  ctx.moveTo(x0 - 5, top - 6);
  ctx.lineTo(x0 + 5, top - 6);
  ctx.lineTo(x0, top + 2);
  ctx.fill();
  if (!texts) return { x0, x1: x0 };
  const text = mark.until === null ? "stopping" : milliseconds(1000 * (mark.until - mark.at));
  ctx.font = `600 11px ${palette.font}`;
  const end = x0 + 8 + ctx.measureText(text).width;
  if (next !== undefined && end > scale.x(next.at) - 6) return { x0: x0 - 6, x1: x0 + 6 };
  ctx.fillText(text, x0 + 8, top - 4);
  return { x0: x0 - 6, x1: end };
}

function queue(ctx, scene, row) {
  const { palette, scale, now } = scene;
  for (const block of blocksIn(row, scene.from, scene.to, scene.shows)) {
    const x0 = scale.x(block.at), x1 = scale.x(Math.min(block.until, now));
    const y = lineTop(row, rowLine(row, block));
    ctx.fillStyle = palette.waiting;
    ctx.fillRect(x0, y, Math.max(1.5, x1 - x0), lineHeight);
    ctx.fillRect(x0, y - 1, 1.5, lineHeight + 2);
  }
  for (const mark of marksOf(row, scene.from - 2, scene.to, scene.shows)) {
    flag(ctx, scene, mark, lineTop(row, rowLine(row, mark)) + 1, lineHeight, false);
  }
  const more = row.model.lanes.queueRows - row.lines;
  if (more > 0 && scene.isWhole) {
    ctx.font = `600 11px ${palette.font}`;
    ctx.fillStyle = palette.text;
    ctx.textAlign = "right";
    ctx.fillText(`+ ${more} more wait`, scene.width - 6, row.top + row.height - 4);
    ctx.textAlign = "left";
  }
}

function outline(ctx, { palette, scale, now, hover, focus }, row) {
  for (const [one, width] of [[hover, 1.5], [focus, 2.5]]) {
    if (one === null || one.row.key !== row.key || one.block === undefined) continue;
    const { block } = one;
    const top = row.kind === "queue" ? lineTop(row, rowLine(row, block)) - 1 : row.bar.top;
    const height = row.kind === "queue" ? lineHeight + 2 : row.bar.height;
    ctx.strokeStyle = width > 2 ? palette.focus : palette.text;
    ctx.lineWidth = width;
    const x0 = scale.x(block.at), x1 = scale.x(Math.min(block.until, now));
    ctx.strokeRect(x0 - 1.5, top - 1.5, Math.max(3, x1 - x0 + 2), height + 3);
  }
}
