"""``pyllmcancel chat``, a conversation in the terminal, and ``pyllmcancel top``, which shows a server's activity."""

from __future__ import annotations

import argparse
from typing import Any

from pyllmcancel.cli.failures import using
from pyllmcancel.cli.options import Option, add_rows

EXTRA = ("httpx", "rich")  # what `pyllmcancel[top]` installs
CHAT = """\
Talk to a model in the terminal. Ctrl-C cancels the answer; a second Ctrl-C, or Ctrl-D, leaves. The model is a running
server's, or it is loaded for this conversation.
"""
TOP = """\
Show a server's requests and its figures, once a second; cancel requests by a key. If the output is not a terminal,
print this once.
"""
MODEL = "a server's address, or what `pyllmcancel serve` takes: a file, smollm2, or USER/MODEL [smollm2]"
URL = "the server's address, with or without /v1"


def add_parsers(commands: argparse._SubParsersAction[Any]) -> None:
    chat = commands.add_parser("chat", help="talk to a model in the terminal", description=CHAT)
    chat.add_argument("model", nargs="?", default="smollm2", metavar="MODEL|URL", help=MODEL)
    add_rows(chat.add_argument_group("server"), [Option("--api-key KEY", str, "", "API key, for an address")])
    chat.set_defaults(run=run_chat)
    top = commands.add_parser("top", help="watch a server, and cancel its requests", description=TOP)
    server = top.add_argument_group("server")
    add_rows(server, [Option("--url URL", str, "http://127.0.0.1:8000", URL)], "top-")
    add_rows(
        server,
        [Option("--api-key KEY", str, "", "API key of an owner, whose requests are shown, or of an administrator")],
    )
    top.set_defaults(run=run_top)


def run_chat(arguments: argparse.Namespace) -> int:
    with using("top", EXTRA):
        from pyllmcancel.top import chat

        return chat.run(arguments.model, arguments.api_key)


def run_top(arguments: argparse.Namespace) -> int:
    with using("top", EXTRA):
        from pyllmcancel.top import command

        return command.run(arguments)
