"""Make docs/llama-server-options.md of the tables in pyllmcancel/cli: `python tools/describe_options.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyllmcancel.cli.llama_options import ANYWAY, IGNORED, REFUSED, Foreign
from pyllmcancel.cli.llama_spellings import SHORTCUTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "llama-server-options.md"
HEAD = """\
# llama-server's options

<!-- Made by tools/describe_options.py: change the tables in pyllmcancel/cli. -->

`pyllmcancel serve` takes every option of the pinned llama-server. Those for what is here, too, mean the same under
the same names: `pyllmcancel serve --help`. `-1` is as good as leaving out `--parallel`, `--threads` or
`--n-gpu-layers`. The port is 8000 where none is said. Of an option that is not known the error names the nearest.

**Environment.** `LLAMA_ARG_…` variables are not read: at the start a line tells each that is set, with ours for the
same thing, `PYLLMCANCEL_…`. `LLAMA_API_KEY` and those of a file of keys or of a certificate are an error, so that a
server which was to be locked does not start open. `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE` and `HF_ENDPOINT`
[are read](hub.md).
"""
SHORTCUT_HEAD = """
## Shortcuts

A model of the hub, and llama-server's settings for it; options that follow change them. There is no drafting: those
with `-spec` in their names serve the large model alone.

| option | model | settings |
|---|---|---|
"""
SECTIONS: tuple[tuple[str, str, Sequence[Foreign]], ...] = (
    ("Accepted, and nothing happens", "A line in the log says why.", IGNORED),
    ("Accepted, and so in any case", "Nothing is said.", ANYWAY),
    ("Refused", "Nobody is served something else than was asked for. The error says this.", REFUSED),
)


def page() -> str:
    """The whole page."""
    return HEAD + SHORTCUT_HEAD + "".join(map(shortcut, SHORTCUTS)) + "".join(section(*parts) for parts in SECTIONS)


def shortcut(name: str) -> str:
    settings = dict(SHORTCUTS[name])
    model, file = settings.pop("hf_repo"), settings.pop("hf_file")
    said = " ".join(
        f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}") for key, value in settings.items()
    )
    return f"| `{name}` | `{model}`{f', `{file}`' if file else ''} | `{said}` |\n"


def section(title: str, text: str, rows: Sequence[Foreign]) -> str:
    lines = [f"| {', '.join(f'`{name}`' for name, _ in row.arities())} | {row.why} |\n" for row in rows]
    return f"\n## {title}\n\n{text}\n\n| options | why |\n|---|---|\n{''.join(lines)}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
