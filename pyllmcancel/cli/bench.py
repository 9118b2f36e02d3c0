"""``pyllmcancel bench``: measure any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.bench.plan import Delay
from pyllmcancel.cli import options
from pyllmcancel.cli.extras import run_with_extra
from pyllmcancel.cli.options import natural, number, positive_int, seconds, whole

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

SCENARIOS = {
    "mix": "a load in which a chosen share of the clients hangs up",
    "typing-storm": "one completion per key; compares the last one's time to first token with the same request alone",
    "agents": "one long answer, while other clients send short requests and drop them",
    "next-after-stop": "a client stops a long prompt; measures the next request's time to first token",
}
EXTRA = ("h11", "httpx", "rich", "matplotlib")  # what `pyllmcancel[bench]` installs for this

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
        epilog="scenarios:\n" + "\n".join(f"  {name:16} {text}" for name, text in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_options(cancel.add_argument_group("server"))
    add_load_options(cancel.add_argument_group("load"))
    add_mix_options(cancel.add_argument_group("mix"))
    add_other_options(cancel.add_argument_group("other scenarios"))
    output = cancel.add_argument_group("output")
    add_option(
        output, "json", Path, None, "write all results here: machine, options, every request, figures", metavar="FILE"
    )
    add_option(output, "plots", Path, None, "draw plots into this folder, as PNG and SVG", metavar="DIR")
    cancel.set_defaults(run=run)


def add_server_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "url", str, "http://127.0.0.1:8000", "the server's address, with or without /v1")
    add_option(group, "model", str, None, "the model to ask for [the first one that the server lists]", metavar="NAME")
    add_option(group, "api", str, "completions", "endpoint to measure", choices=("completions", "chat"))
    add_switch(group, "stream", True, "ask for streams; scenarios that measure first tokens always stream")
    add_switch(group, "keep-alive", True, "reuse connections, as most clients do")
    add_switch(group, "ignore-eos", True, "ask for answers of full length; some servers ignore this")
    headers = "X-Supersede,X-Session-Id"
    text = "headers in which each scenario sends its supersede key; for llama-server: X-Conversation-Id"
    add_option(group, "supersede-headers", names, headers, text, metavar="NAMES")
    add_option(group, "api-key", str, "", "API key, sent as a bearer token", metavar="KEY")
    add_option(group, "extra", str, "{}", "JSON object of fields to add to every body", metavar="JSON")
    add_option(group, "timeout", seconds, 600.0, "time after which a request counts as an error", metavar="S")
    add_option(group, "pid", positive_int, None, "process id of the server, to measure its CPU time")


def add_load_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "scenario", str, "mix", "load to measure; see below", choices=tuple(SCENARIOS))
    add_option(group, "seed", whole, 42, "seed of the choice of requests, lengths and times")
    add_option(group, "prompt-seed", str, None, "seed of the prompts' texts [a new one for each run]", metavar="TEXT")
    add_option(group, "prompt-tokens", positive_int, None, "mean length of prompts [the scenario's]", metavar="N")
    add_option(group, "output-tokens", positive_int, None, "mean length of answers [the scenario's]", metavar="N")
    add_option(
        group, "percent", percents, "10", "per cent of requests to cut; several values: a run for each", metavar="P"
    )
    add_option(group, "delay", delay, "0.5", "seconds from a request's end to the hang-up, S or S..S", metavar="S")


def add_mix_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "requests", positive_int, 50, "number of requests to measure")
    add_option(group, "warmup", natural, 2, "number of requests to send before, none of which is cut")
    add_option(group, "concurrency", positive_int, 4, "number of clients, each with one request at a time")
    add_option(group, "rate", positive_float, None, "Poisson arrivals a second, in place of a closed loop", metavar="R")
    add_option(
        group,
        "supersede-keys",
        natural,
        0,
        "supersede keys that the clients share; 0: none",
    )
    add_option(group, "prompt-stddev", seconds, 0.0, "standard deviation of the prompts' lengths", metavar="N")
    add_option(group, "output-stddev", seconds, 0.0, "standard deviation of the answers' lengths", metavar="N")
    add_switch(group, "wait-for-rest", True, "with --pid and one client: wait after a hang-up until the server is idle")


def add_other_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "runs", positive_int, 3, "repetitions (typing-storm, next-after-stop)")
    add_option(group, "keys", positive_int, 8, "number of keys typed (typing-storm)")
    add_option(group, "interval", seconds, 0.3, "seconds from one key to the next (typing-storm)", metavar="S")
    add_option(group, "differ", str, "head", "where the typed prompts differ (typing-storm)", choices=("head", "tail"))
    add_option(
        group, "sockets", str, "kept", "connections of outdated requests (typing-storm)", choices=("kept", "closed")
    )
    add_switch(group, "supersede", True, "let a newer key supersede the older one (typing-storm)")
    add_option(group, "helpers", positive_int, 2, "number of clients beside the long answer (agents)")
    add_option(group, "helper-prompt-tokens", positive_int, 100, "length of their prompts (agents)")
    add_option(group, "helper-output-tokens", positive_int, 32, "length of their answers (agents)")
    add_option(
        group, "stop-after", seconds, 1.0, "seconds from a request's end to the stop (next-after-stop)", metavar="S"
    )


def run(arguments: argparse.Namespace) -> int:
    def with_its_packages() -> int:
        from pyllmcancel.bench import command

        return command.run(arguments)

    return run_with_extra("bench", EXTRA, with_its_packages)


def percents(text: str) -> tuple[float, ...]:
    values = tuple(number(part) for part in text.split(","))
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"must be from 0 to 100, not {text}")
    return values


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def delay(text: str) -> Delay:
    shortest, _, longest = text.partition("..")
    found = Delay(seconds(shortest), seconds(longest or shortest))
    if found.longest < found.shortest:
        raise argparse.ArgumentTypeError(f"the range ends before it begins: {text}")
    return found


def positive_float(text: str) -> float:
    value = seconds(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return value
