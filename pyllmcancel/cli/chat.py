"""``pyllmcancel chat``: a conversation in the terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli.extras import run_with_extra
from pyllmcancel.cli.options import add_option

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

EXTRA = ("httpx", "rich")  # what `pyllmcancel[top]` installs
DESCRIPTION = """\
Talk to a model in the terminal. Ctrl-C cancels the answer; a second Ctrl-C, or Ctrl-D, leaves. The model is a running
server's, or it is loaded for this conversation.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("chat", help="talk to a model in the terminal", description=DESCRIPTION)
    text = "a server's address, or what `pyllmcancel serve` takes: a file, smollm2, or USER/MODEL [smollm2]"
    parser.add_argument("model", nargs="?", default="smollm2", metavar="MODEL|URL", help=text)
    add_option(parser.add_argument_group("server"), "api-key", str, "", "API key, for an address", metavar="KEY")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    def with_its_packages() -> int:
        from pyllmcancel.top import chat

        return chat.run(arguments.model, arguments.api_key)

    return run_with_extra("top", EXTRA, with_its_packages)
