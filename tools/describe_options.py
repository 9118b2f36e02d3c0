"""Make docs/llama-server-options.md of the tables in pyllmcancel/cli: `python tools/describe_options.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyllmcancel.cli.llama_options import ANYWAY, IGNORED, REFUSED, SHORTCUTS, Foreign

PAGE = Path(__file__).resolve().parents[1] / "docs" / "llama-server-options.md"
HEAD = """\
# llama-server's options

<!-- Made by tools/describe_options.py: change the tables in pyllmcancel/cli. -->

`pyllmcancel serve` accepts every option of the pinned llama-server. An option that does the same here has the same
name: see `pyllmcancel serve --help-all`. `-1` for `--parallel`, `--threads` or `--n-gpu-layers` is the same as no
option. The default port is 8000. The error for an unknown option names the nearest known one.

**Environment.** `LLAMA_ARG_…` variables are not read. At the start a line in the log names each that is set, with our
variable for the same thing, `PYLLMCANCEL_…`. `LLAMA_API_KEY` is an error, and so are the variables for a file of keys
or for a certificate: a server that was meant to be locked must not start open. `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`
and `HF_ENDPOINT` [are read](hub.md).
"""
SHORTCUT_HEAD = """
## Shortcuts

A shortcut loads a model of the hub with llama-server's settings. Later options override the settings. In shortcuts with
`-spec` in their names a smaller model drafts.

"""
SECTIONS: tuple[tuple[str, str, Sequence[Foreign]], ...] = (
    ("Ignored", "A line in the log says why.", IGNORED),
    ("Accepted, and true in any case", "The log says nothing.", ANYWAY),
    ("Refused", "Nobody is served something else than was asked for. The error gives this reason.", REFUSED),
)


def page() -> str:
    """The whole page."""
    return HEAD + SHORTCUT_HEAD + shortcuts() + "".join(section(*parts) for parts in SECTIONS)


def shortcuts() -> str:
    """A line for all shortcuts that have the same settings."""
    rows: dict[str, list[str]] = {}
    for name, given in SHORTCUTS.items():
        settings = dict(given)
        model, file = settings.pop("hf_repo"), settings.pop("hf_file")
        said = " ".join(
            f"--{key.replace('_', '-')}" + ("" if value is True else f" {value}") for key, value in settings.items()
        )
        rows.setdefault(said, []).append(f"`{name}` (`{model}`{f', `{file}`' if file else ''})")
    return "".join(f"- `{said}`: {', '.join(names)}\n" for said, names in rows.items())


def section(title: str, text: str, rows: Sequence[Foreign]) -> str:
    lines = [f"- {', '.join(f'`{name}`' for name, _ in row.arities())}: {row.why}\n" for row in rows]
    return f"\n## {title}\n\n{text}\n\n{''.join(lines)}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
