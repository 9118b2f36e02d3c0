"""``pyllmcancel bench``: measure any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli import options
from pyllmcancel.cli.extras import run_with_extra
from pyllmcancel.cli.options import number, positive_int, seconds, whole

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

EXTRA = ("h11", "httpx", "rich")  # what `pyllmcancel[bench]` installs for this

# The variables are PYLLMCANCEL_BENCH_…, because `serve` has options of the same names.
add_option = functools.partial(options.add_option, scope="bench-")
add_switch = functools.partial(options.add_switch, scope="bench-")


def add_parser(commands: Commands) -> None:
    """Add ``bench`` with what can be measured."""
    parser = commands.add_parser("bench", help="measure any OpenAI-compatible server", description=__doc__)
    benches = parser.add_subparsers(dest="bench_command", required=True)
    cancel = benches.add_parser(
        "cancel",
        help="load a server with clients that hang up",
        description=(
            "Load a server with clients, some of which hang up. Measure what that does to the server and the others."
        ),
    )
    add_server_options(cancel.add_argument_group("server"))
    add_load_options(cancel.add_argument_group("load"))
    output = cancel.add_argument_group("output")
    add_option(
        output, "json", Path, None, "write all results here: machine, options, every request, figures", metavar="FILE"
    )
    cancel.set_defaults(run=run)


def add_server_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "url", str, "http://127.0.0.1:8000", "the server's address, with or without /v1")
    add_option(group, "model", str, None, "the model to ask for [the first one that the server lists]", metavar="NAME")
    add_option(group, "api", str, "completions", "endpoint to measure", choices=("completions", "chat"))
    add_switch(group, "stream", True, "ask for streams")
    add_switch(group, "ignore-eos", True, "ask for answers of full length; some servers ignore this")
    add_option(group, "api-key", str, "", "API key, sent as a bearer token", metavar="KEY")
    add_option(group, "extra", str, "{}", "JSON object of fields to add to every body", metavar="JSON")
    add_option(group, "timeout", seconds, 600.0, "time after which a request counts as an error", metavar="S")
    add_option(group, "pid", positive_int, None, "process id of the server, to measure its CPU time")


def add_load_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "requests", positive_int, 50, "number of requests to measure")
    add_option(group, "concurrency", positive_int, 4, "number of clients, each with one request at a time")
    add_option(group, "percent", percent, 10.0, "per cent of requests to cut", metavar="P")
    add_option(group, "delay", delay, "0.5", "seconds from a request's end to the hang-up, S or S..S", metavar="S")
    add_option(group, "prompt-tokens", positive_int, 200, "length of prompts", metavar="N")
    add_option(group, "output-tokens", positive_int, 60, "length of answers", metavar="N")
    add_option(group, "seed", whole, 42, "seed of the choice of requests and times")


def run(arguments: argparse.Namespace) -> int:
    def with_its_packages() -> int:
        from pyllmcancel.bench import command

        return command.run(arguments)

    return run_with_extra("bench", EXTRA, with_its_packages)


def percent(text: str) -> float:
    value = number(text)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"must be from 0 to 100, not {text}")
    return value


def delay(text: str) -> tuple[float, float]:
    first, _, last = text.partition("..")
    shortest, longest = seconds(first), seconds(last or first)
    if longest < shortest:
        raise argparse.ArgumentTypeError(f"the range ends before it begins: {text}")
    return shortest, longest
