"""Make docs/command-line.md of the command's own help: `python tools/describe_commands.py`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pyllmcancel.cli import command_parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "command-line.md"
HEAD = """\
# The command line

<!-- Made by tools/describe_commands.py of the command's own help: change pyllmcancel/cli. -->

`pyllmcancel COMMAND --help` shows the same. `pyllmcancel serve --help` has the options that matter first, `--help-all`
every one. An option with a variable can be set in the environment, too; the command line has precedence. `serve` also
accepts [llama-server's options](llama-server-options.md).
"""
# As `explained` writes it.
HELP = re.compile(r"(?P<text>.*?)(?:(?<!extra) \[(?P<default>[^]]*)\])?(?: \(env: (?P<variable>\w+)\))?", re.DOTALL)


def page() -> str:
    """The whole page."""
    set_here = [name for name in os.environ if name.startswith("PYLLMCANCEL_")]
    kept = {name: os.environ.pop(name) for name in set_here}  # they would be shown as defaults
    try:
        parts = [text for parser in commands(command_parser()) for text in command(parser)]
    finally:
        os.environ.update(kept)
    return HEAD + "".join(parts)


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that can be run, which are those without further commands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below or not below[0].required:
        yield parser
    for action in below:
        for child in action.choices.values():
            yield from commands(child)


def command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"\n## `{parser.prog}`\n{paragraph(parser.description)}"
    for group in parser._action_groups:
        rows = [row(action) for action in group._group_actions if is_shown(action)]
        if not rows:
            continue
        if group.title not in ("positional arguments", "options"):
            yield f"\n### {parser.prog.rpartition(' ')[2]}: {group.title}\n{paragraph(group.description)}"
        yield f"\n| option | meaning | default | variable |\n|---|---|---|---|\n{''.join(rows)}"


def is_shown(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and "--help" not in action.option_strings and "--help-all" not in action.option_strings


def paragraph(text: str | None) -> str:
    return "" if text is None else f"\n{linked(' '.join(text.split()))}\n"


def linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text)


def row(action: argparse.Action) -> str:
    found = HELP.fullmatch(" ".join((action.help or "").split()))
    assert found is not None
    default = found["default"] or ""
    if isinstance(action.default, bool) and any(name.startswith("--no-") for name in action.option_strings):
        default = default or ("on" if action.default else "off")
    variable = f"`{found['variable']}`" if found["variable"] else ""
    cells = (names(action), linked(found["text"]), default, variable)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def names(action: argparse.Action) -> str:
    """The spellings, and what the option takes."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return f"`{value}`"
    shown = [f"`{name}`" for name in sorted(action.option_strings, key=lambda name: not name.startswith("--"))]
    return f"{', '.join(shown)}{f' `{value}`' if value else ''}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
