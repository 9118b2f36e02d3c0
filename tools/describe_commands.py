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

<!-- Made by tools/describe_commands.py of the command's own help: change pyllmcancel/cli/serve_options.py. -->

`pyllmcancel serve --help` has the options that matter first, `--help-all` every one. Brackets have the default;
`--[no-]NAME` stands for `--NAME` and `--no-NAME`, and is off unless it says so.

An option can be set in the environment, too, as `PYLLMCANCEL_` and its first name in capitals: `PYLLMCANCEL_CTX_SIZE`.
Before the name stand `MODELS_`, `TOP_` or `BENCH_` for the addresses of these commands and for all options of `bench`.
`--list-devices`, `--fit-print` and `--json` of `models` have no variable. The command line has precedence.
`models load`, `unload` and `restart` have the options of `models status`. `serve` also accepts
[llama-server's options](llama-server-options.md).
"""
FEW = 2  # a command's first options need no heading, if they are no more
ELSEWHERE = ("shortcuts",)  # groups of options that another page has
# As `explained` writes it.
HELP = re.compile(r"(?P<text>.*?)(?:(?<!extra) \[(?P<default>[^]]*)\])?(?: \(env: (?P<variable>\w+)\))?", re.DOTALL)


def page() -> str:
    """The whole page."""
    set_here = [name for name in os.environ if name.startswith("PYLLMCANCEL_")]
    kept = {name: os.environ.pop(name) for name in set_here}  # they would be shown as defaults
    try:
        seen: set[tuple[str, str]] = set()
        parts = [text for parser in commands(command_parser()) for text in command(parser, seen)]
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


def command(parser: argparse.ArgumentParser, seen: set[tuple[str, str]]) -> Iterator[str]:
    """The section of a command, without the rows of its group that have been `seen`."""
    family = parser.prog.rpartition(" ")[0]
    yield f"\n## `{parser.prog}`\n{paragraph(parser.description)}"
    listed = headed = False
    for group in parser._action_groups:
        rows = [row(action) for action in group._group_actions if is_shown(action)]
        rows = [one for one in rows if (family, one) not in seen]
        seen.update((family, one) for one in rows)
        if not rows or group.title in ELSEWHERE:
            continue
        if (headed or len(rows) > FEW) and group.title not in ("positional arguments", "options"):
            yield f"\n### {parser.prog.rpartition(' ')[2]}: {group.title}\n\n{see(group.description)}"
            headed = True
        elif not listed:
            yield "\n"
        yield "".join(rows)
        listed = True


def is_shown(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and "--help" not in action.option_strings and "--help-all" not in action.option_strings


def paragraph(text: str | None) -> str:
    return "" if text is None else f"\n{linked(' '.join(text.split()))}\n"


def see(text: str | None) -> str:
    """The page that a group's description names."""
    found = re.search(r"docs/[\w-]+\.md", text or "")
    return "" if found is None else f"See {linked(found[0])}.\n\n"


def linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text)


def row(action: argparse.Action) -> str:
    found = HELP.fullmatch(" ".join((action.help or "").split()))
    assert found is not None
    default = found["default"] or ""
    if isinstance(action.default, bool) and any(name.startswith("--no-") for name in action.option_strings):
        default = default or ("on" if action.default else "")
    notes = [default, *other_variable(action, found["variable"])]
    text = linked(found["text"]) + "".join(f" [{note}]" for note in notes if note)
    return f"- {names(action)}: {text}\n"


def other_variable(action: argparse.Action, variable: str | None) -> Iterator[str]:
    """The variable of an option, if it is not the one that the head of the page derives from the option's name."""
    usual = next((name for name in action.option_strings if name.startswith("--")), "--")[2:].replace("-", "_").upper()
    if variable and not re.fullmatch(f"PYLLMCANCEL_(MODELS_|TOP_|BENCH_)?{usual}", variable):
        yield f"`{variable}`"


def names(action: argparse.Action) -> str:
    """The spellings, and what the option takes."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return f"`{value}`"
    every = sorted(action.option_strings, key=lambda name: not name.startswith("--"))
    switched = {name.replace("--no-", "--", 1) for name in every if name.startswith("--no-")} & set(every)
    shown = [f"--[no-]{name[2:]}" if name in switched else name for name in every]
    kept = [name for name in shown if name.replace("--no-", "--", 1) not in switched]
    return f"`{'/'.join(kept)}{f' {value}' if value else ''}`"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
