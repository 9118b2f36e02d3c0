"""The picture: an SVG that runs by itself, in light and in dark, and stands still where motion is not wanted."""

from __future__ import annotations

from html import escape

from bench.typing_picture.times import Key, Typing

WIDTH, LEFT, RIGHT = 880, 112, 24
ROW, HEAD, FOOT, GAP = 22, 62, 30, 26
FASTER = 3.0  # the picture's seconds are so much shorter
HOLD = 4.0  # seconds at the end, before it begins again

STYLE = """
svg { --text: #16202c; --dim: #566273; --line: #d5dae1; --surface: #ffffff; --wait: #b8c1cc; --work: #00856a;
  --waste: #c2410c; --mark: #a3217c; font: 14px system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --text: #e6ebf2; --dim: #9fadbf; --line: #2b3644; --surface: #18202a; --wait: #4a5666; --work: #3fbf9b;
    --waste: #ff8a65; --mark: #f08ccf; }
}
.surface { fill: var(--surface); stroke: var(--line); }
text { fill: var(--text); }
.dim { fill: var(--dim); }
.name { font-weight: 650; font-size: 16px; }
.small { font-size: 12px; }
.grid { stroke: var(--line); }
.wait { fill: var(--wait); }
.work { fill: var(--work); }
.waste { fill: url(#hatch); stroke: var(--waste); }
.hatched { stroke: var(--waste); stroke-width: 3; }
.left { stroke: var(--mark); stroke-width: 2; fill: none; }
.first { fill: var(--text); }
.sweep { transform-origin: 0 0; animation: sweep TOTALs linear infinite; }
.cursor { stroke: var(--dim); stroke-dasharray: 3 3; animation: cursor TOTALs linear infinite; }
@keyframes sweep { from { transform: scaleX(0); } SHARE%, to { transform: scaleX(1); } }
@keyframes cursor {
  from { transform: translateX(0); }
  SHARE% { transform: translateX(SPANpx); opacity: 1; }
  END%, to { transform: translateX(SPANpx); opacity: 0; }
}
@media (prefers-reduced-motion: reduce) { .sweep { animation: none; } .cursor { animation: none; opacity: 0; } }
"""
# The legend of the marks: a drawing 16 wide for each.
LEGEND = (
    ('<rect class="wait" y="2" width="16" height="13" rx="2"/>', "in the queue"),
    ('<rect class="work" y="2" width="16" height="13" rx="2"/>', "computed"),
    ('<rect class="waste" y="2" width="16" height="13" rx="2"/>', "computed for nobody"),
    ('<path class="left" d="M4 4l9 9m0-9l-9 9"/>', "the client leaves: the next key"),
    ('<path class="first" d="M8 1l7 8-7 8-7-8z"/>', "first token"),
)


def drawn(typings: list[Typing]) -> str:
    seconds = 1.04 * max(max(key.ended or 0.0, key.first_token or 0.0) for one in typings for key in one.keys)
    n_keys = len(typings[0].keys)
    panel = HEAD + n_keys * ROW + FOOT
    height = len(typings) * (panel + GAP) + 28
    total, span = seconds / FASTER + HOLD, WIDTH - LEFT - RIGHT
    share = 100 * seconds / FASTER / total
    style = STYLE.replace("TOTAL", f"{total:.2f}").replace("SHARE", f"{share:.2f}").replace("SPAN", str(span))
    style = style.replace("END", f"{share + 0.1:.2f}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
        f' aria-label="{label(typings)}">',
        f"<style>{style}</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line y2="6" class="hatched"/></pattern>',
        f'<clipPath id="now"><rect class="sweep" width="{span}" height="{height}"/></clipPath></defs>',
    ]
    for number, typing in enumerate(typings):
        parts.append(f'<g transform="translate(0 {number * (panel + GAP) + 4})">{panel_of(typing, seconds, panel)}</g>')
    return "\n".join([*parts, legend(height - 26), "</svg>\n"])


def legend(y: float) -> str:
    x, parts = 16.0, []
    for drawing, text in LEGEND:
        parts.append(
            f'<g transform="translate({x} {y})">{drawing}<text class="dim small" x="22" y="13">{text}</text></g>'
        )
        x += 48 + 6.6 * len(text)
    return "".join(parts)


def label(typings: list[Typing]) -> str:
    waits = ", ".join(f"{escape(one.server)} {one.waited:.1f} s" for one in typings)
    return f"From the last key to its first token: {waits}"


def panel_of(typing: Typing, seconds: float, height: int) -> str:
    span = WIDTH - LEFT - RIGHT
    bottom = HEAD + len(typing.keys) * ROW
    nobody = (
        f"{typing.for_nobody:.1f} s computed for nobody"
        if typing.for_nobody >= 0.05
        else (f"{1000 * typing.for_nobody:.0f} ms computed for nobody")
    )
    parts = [
        f'<rect class="surface" x="1" width="{WIDTH - 2}" height="{height}" rx="8"/>',
        f'<text class="name" x="16" y="26">{escape(typing.server)}</text>',
        f'<text x="{WIDTH - 16}" y="26" text-anchor="end">',
        f"suggestion {typing.waited:.1f} s after the last key, {nobody}</text>",
    ]
    for second in range(0, int(seconds) + 1, tick(seconds)):
        x = LEFT + span * second / seconds
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD - 20}" y2="{bottom}"/>')
        parts.append(f'<text class="dim small" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{second} s</text>')
    rows = []
    for number, key in enumerate(typing.keys):
        y = HEAD + number * ROW
        parts.append(
            f'<text class="dim small key" x="{LEFT - 12}" y="{y + 11}" text-anchor="end">key {number + 1}</text>'
        )
        rows.append(f'<g transform="translate(0 {y - 3})">{row_of(key, span / seconds)}</g>')
    parts.append(f'<g transform="translate({LEFT} 0)"><g clip-path="url(#now)">{"".join(rows)}</g>')
    parts.append(f'<line class="cursor" y1="{HEAD - 14}" y2="{bottom}"/></g>')
    return "".join(parts)


def tick(seconds: float) -> int:
    return next(step for step in (1, 2, 5, 10, 20, 60) if seconds / step <= 14)


def row_of(key: Key, scale: float) -> str:
    def bar(begin: float, end: float, kind: str) -> str:
        width = max(1.0, (end - begin) * scale)
        return f'<rect class="{kind}" x="{begin * scale:.1f}" y="2" width="{width:.1f}" height="13" rx="2"/>'

    gone = key.left if key.left is not None else float("inf")
    begin = key.began if key.began is not None else gone
    parts = [bar(key.sent, begin, "wait")] if begin > key.sent else []
    if key.began is not None and key.ended is not None:
        if key.began < gone:
            parts.append(bar(key.began, min(key.ended, gone), "work"))
        if key.ended > gone:
            parts.append(bar(max(key.began, gone), key.ended, "waste"))
    if key.left is not None:
        x = key.left * scale
        parts.append(f'<path class="left" d="M{x - 4:.1f} 4l9 9m0-9l-9 9"/>')
    if key.first_token is not None:
        x = key.first_token * scale
        parts.append(f'<path class="first" d="M{x:.1f} 1l7 8-7 8-7-8z"/>')
    return "".join(parts)
