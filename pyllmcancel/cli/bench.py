"""``pyllmcancel bench``: measure any OpenAI-compatible server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyllmcancel.cli.converters import delay, percent, positive_int, seconds, whole
from pyllmcancel.cli.failures import using
from pyllmcancel.cli.options import Option, Switch, add_rows

EXTRA = ("h11", "httpx", "rich")  # what `pyllmcancel[bench]` installs for this
# fmt: off
GROUPS = {
    "server": (
        Option("--url URL", str, "http://127.0.0.1:8000", "the server's address, with or without /v1"),
        Option("--model NAME", str, None, "the model to ask for [the first one that the server lists]"),
        Option("--api", ("completions", "chat"), "completions", "endpoint to measure"),
        Switch("--stream", True, "ask for streams"),
        Switch("--ignore-eos", True, "ask for answers of full length; some servers ignore this"),
        Option("--api-key KEY", str, "", "API key, sent as a bearer token"),
        Option("--extra JSON", str, "{}", "JSON object of fields to add to every body"),
        Option("--timeout S", seconds, 600.0, "seconds after which a request counts as an error"),
        Option("--pid N", positive_int, None, "process id of the server, to measure its CPU time"),
    ),
    "load": (
        Option("--requests N", positive_int, 50, "number of requests to measure"),
        Option("--concurrency N", positive_int, 4, "number of clients, each with one request at a time"),
        Option("--percent P", percent, 10.0, "per cent of requests to cut"),
        Option("--delay S", delay, "0.5", "seconds from a request's end to the hang-up, S or S..S"),
        Option("--prompt-tokens N", positive_int, 200, "length of prompts"),
        Option("--output-tokens N", positive_int, 60, "length of answers"),
        Option("--seed N", whole, 42, "seed of the choice of requests and times"),
    ),
    "output": (
        Option("--json FILE", Path, None, "write all results here: machine, options, every request, figures"),
    ),
}
# fmt: on


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add ``bench`` with what can be measured."""
    parser = commands.add_parser("bench", help="measure any OpenAI-compatible server")
    benches = parser.add_subparsers(dest="bench_command", required=True)
    cancel = benches.add_parser(
        "cancel",
        help="load a server with clients that hang up",
        description=(
            "Load a server with clients, some of which hang up. Measure what that does to the server and the others."
        ),
    )
    for title, rows in GROUPS.items():
        # The variables are PYLLMCANCEL_BENCH_…, because `serve` has options of the same names.
        add_rows(cancel.add_argument_group(title), rows, "bench-")
    cancel.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with using("bench", EXTRA):
        from pyllmcancel.bench import command

        return command.run(arguments)
