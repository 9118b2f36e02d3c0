"""The help of ``pyllmcancel serve``: the first options, all of them, or one group."""

from __future__ import annotations

import argparse
import copy
import re
import sys
from typing import Any

from pyllmcancel.cli.options import silent
from pyllmcancel.cli.parser import nearest

# The options that somebody needs first, in the order in which the help shows them.
FIRST = (
    *("model", "hf-repo", "alias", "host", "port", "api-key", "cors-origins", "ctx-size", "parallel", "threads"),
    *("n-gpu-layers", "supersede", "request-timeout", "temp", "log-level"),
)
DEFAULT = re.compile(r"( \[[^]]*\]) \(env: ")  # as `explained` writes it
TAIL = "Every option has a variable in the environment, too: --port has PYLLMCANCEL_PORT.\n"


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add ``--help`` with an optional group, and ``--help-all``, to a parser that was made without help."""
    text = "show this help, or all options of a group"
    group: Any = silent(show, "?")
    parser.add_argument("-h", "--help", "--usage", metavar="GROUP", help=text, **group)
    parser.add_argument("--help-all", help="show all options", **silent(show_all))


def show(parser: argparse.ArgumentParser, _namespace: Any, group: str | None, _option: Any) -> None:
    """Print the first options and the names of the groups, or the options of a group, and exit."""
    sys.stdout.write(first_help(parser) if group is None else group_help(parser, group))
    parser.exit()


def show_all(parser: argparse.ArgumentParser, *_: Any) -> None:
    sys.stdout.write(parser.format_help())
    parser.exit()


class Formatter(argparse.HelpFormatter):
    """Shows an option as ``-p, --port N``, with its value once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def first_help(parser: argparse.ArgumentParser) -> str:
    """Return the text of ``--help``."""
    formatter = Formatter(parser.prog)
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text(parser.description)
    formatter.start_section("first options")
    formatter.add_arguments([action for action in parser._actions if not action.option_strings])
    formatter.add_arguments(
        [brief(parser._option_string_actions[f"--{name}"]) for name in (*FIRST, "help", "help-all")]
    )
    formatter.end_section()
    groups = described_groups(parser)
    width = max(map(len, groups))
    lines = [f"  {name:{width}}  {group.description}\n" for name, group in groups.items()]
    return f"{formatter.format_help()}\ngroups of options:\n{''.join(lines)}\n{TAIL}"


def brief(action: argparse.Action) -> argparse.Action:
    """Return a copy with the text up to the first semicolon, the default, the name and the first short spelling."""
    copied = copy.copy(action)
    short = [name for name in action.option_strings if not name.startswith("--")][:1]
    copied.option_strings = [*short, next(name for name in action.option_strings if name.startswith("--"))]
    text = str(action.help)
    default = DEFAULT.search(text)
    copied.help = re.split(r"; | \[| \(env", text)[0] + (default[1] if default else "")
    return copied


def group_help(parser: argparse.ArgumentParser, name: str) -> str:
    """Return the text of a group; the parser's error if there is no such group."""
    groups = described_groups(parser)
    if name not in groups:
        parser.error(f"there is no group {name!r}{nearest(name, groups)}; the groups are {', '.join(groups)}")
    formatter = Formatter(parser.prog)
    formatter.start_section(name)
    formatter.add_text(groups[name].description)
    formatter.add_arguments(groups[name]._group_actions)
    formatter.end_section()
    return formatter.format_help()


def described_groups(parser: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
    """Return the groups that have a description, which are those with options of ours."""
    return {str(group.title): group for group in parser._action_groups if group.description}
