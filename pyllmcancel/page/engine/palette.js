// The page's colours for a canvas, and patterns, so that nothing is shown by colour alone.

const NAMES = ["surface", "sunken", "line", "line-strong", "text", "dim", "focus", "waiting", "prefill", "decode", "aborted", "cancel", "bg"];
const TILE = 8; // CSS pixels

// So that a colour is read as the one of the present scheme, not as the text in the style.
for (const name of NAMES) CSS.registerProperty({ name: `--${name}`, syntax: "<color>", inherits: true, initialValue: "transparent" });

// The timeline reads the palette again when the colour scheme changes.
export function readPalette(element, scale) {
  const style = getComputedStyle(element);
  const colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const font = style.getPropertyValue("--font").trim();
  const pattern = (paint) => tile(scale, paint);
  return {
    ...colours,
    font,
    strong: colours["line-strong"],
    prefillPattern: pattern((ctx) => stripes(ctx, colours.prefill, colours.surface, 0.42)),
    abortedPattern: pattern((ctx) => crosses(ctx, colours.surface, colours.aborted)),
    cancelPattern: pattern((ctx) => stripes(ctx, colours.surface, colours.cancel, 0.9)),
    gapPattern: pattern((ctx) => stripes(ctx, colours.sunken, colours["line-strong"], 0.3)),
  };
}

// Patterns move with the area that they fill: `shift` is in CSS pixels.
export function shifted(pattern, scale, shift) {
  pattern.setTransform(new DOMMatrix([1 / scale, 0, 0, 1 / scale, shift % TILE, 0]));
  return pattern;
}

function tile(scale, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.round(TILE * scale);
  const ctx = canvas.getContext("2d");
  ctx.scale(canvas.width / TILE, canvas.height / TILE);
  paint(ctx);
  return ctx.createPattern(canvas, "repeat");
}

function stripes(ctx, below, above, alpha) {
  ctx.fillStyle = below;
  ctx.fillRect(0, 0, TILE, TILE);
  ctx.globalAlpha = alpha;
  line(ctx, above, 2.2, [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6]]);
}

function crosses(ctx, below, above) {
  ctx.fillStyle = below;
  ctx.fillRect(0, 0, TILE, TILE);
  line(ctx, above, 1.6, [[0, 0, 8, 8], [8, 0, 0, 8]]);
}

function line(ctx, colour, width, lines) {
  ctx.strokeStyle = colour;
  ctx.lineWidth = width;
  ctx.beginPath();
  for (const [x0, y0, x1, y1] of lines) { ctx.moveTo(x0, y0); ctx.lineTo(x1, y1); }
  ctx.stroke();
}
