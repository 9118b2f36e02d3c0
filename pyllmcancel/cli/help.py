"""The help of ``pyllmcancel serve``: the first options, all of them, or one group."""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Sequence
from typing import Any

from pyllmcancel.cli.parser import nearest

# The options that somebody needs first, in the order in which the help shows them, each in one line. The full text of
# an option is in its group.
FIRST = {
    "model": "GGUF file, or smollm2",
    "hf-repo": "USER/MODEL or USER/MODEL:QUANT of the Hugging Face hub",
    "alias": "the model's name in answers",
    "host": "address to listen on",
    "port": "port to listen on; 0: a free one",
    "api-key": "key that clients must send",
    "cors-origins": "other pages that may use the server; *: all",
    "ctx-size": "context in tokens; 0: automatic",
    "parallel": "limit of requests that compute at once",
    "threads": "compute threads; 0: one per core",
    "n-gpu-layers": "layers on GPUs: a number, all or auto",
    "supersede": "let a client's newer request cancel its older one",
    "request-timeout": "deadline of every request, queue included",
    "temp": "temperature of requests that have none",
    "log-level": "lowest level of records to log",
}
DEFAULT = re.compile(r"( \[[^]]*\]) \(env: ")  # as `explained` writes it
TAIL = "Every option has a variable in the environment, too: --port has PYLLMCANCEL_PORT.\n"


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add ``--help`` with an optional group, and ``--help-all``, to a parser that was made without help."""
    hidden: Any = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    text = "show this help, or all options of a group"
    parser.add_argument("-h", "--help", "--usage", action=Help, nargs="?", metavar="GROUP", help=text, **hidden)
    parser.add_argument("--help-all", action=Help, nargs=0, help="show all options", **hidden)


class Help(argparse.Action):
    """Prints the first options and the names of the groups, or the options of a group, or all; and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        if self.nargs == 0:
            text = parser.format_help()
        else:
            text = first_help(parser) if values is None else group_help(parser, str(values))
        sys.stdout.write(text)
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
    formatter.add_arguments([brief(parser._option_string_actions[f"--{name}"], text) for name, text in FIRST.items()])
    formatter.add_arguments([brief(action, str(action.help)) for action in parser._actions if isinstance(action, Help)])
    formatter.end_section()
    groups = described_groups(parser)
    width = max(map(len, groups))
    lines = [f"  {name:{width}}  {group.description}\n" for name, group in groups.items()]
    return f"{formatter.format_help()}\ngroups of options:\n{''.join(lines)}\n{TAIL}"


def brief(action: argparse.Action, text: str) -> argparse.Action:
    """Return a copy with a short text, its default, and no spellings but the name and the first short one."""
    copied = copy.copy(action)
    short = [name for name in action.option_strings if not name.startswith("--")][:1]
    copied.option_strings = [*short, next(name for name in action.option_strings if name.startswith("--"))]
    default = DEFAULT.search(action.help or "")
    copied.help = text + (default[1] if default else "")
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
