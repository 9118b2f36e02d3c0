"""``pyllmcancel top``: show a server's present activity in the terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli.extras import run_with_extra
from pyllmcancel.cli.options import add_option

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

EXTRA = ("httpx", "rich")  # what `pyllmcancel[top]` installs
DESCRIPTION = """\
Show a server's requests and its figures, once a second; cancel requests by a key. If the output is not a terminal,
print this once.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("top", help="watch a server, and cancel its requests", description=DESCRIPTION)
    group = parser.add_argument_group("server")
    add_option(group, "url", str, "http://127.0.0.1:8000", "the server's address, with or without /v1", scope="top-")
    text = "API key of the owner whose requests are shown, or of an administrator"
    add_option(group, "api-key", str, "", text, metavar="KEY")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    def with_its_packages() -> int:
        from pyllmcancel.top import command

        return command.run(arguments)

    return run_with_extra("top", EXTRA, with_its_packages)
