"""``pyllmcancel bench``: measure any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.bench.plan import Delay
from pyllmcancel.cli import options
from pyllmcancel.cli.extras import run_with_extra
from pyllmcancel.cli.options import natural, positive_int, seconds

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

SCENARIOS = {
    "mix": "a load of which a chosen part of the clients hangs up",
    "typing-storm": "a completion for every key; the last one's first token against the same request alone",
    "agents": "one long answer, and auxiliary requests beside it that come and are dropped",
    "next-after-stop": "stop in the middle of a long prompt; time to the first token of the next request",
}
EXTRA = ("h11", "httpx", "rich", "matplotlib")  # what `pyllmcancel[bench]` installs for this

# PYLLMCANCEL_BENCH_… in the environment, because `serve` has options of the same names.
add_option = functools.partial(options.add_option, scope="bench-")
add_switch = functools.partial(options.add_switch, scope="bench-")


def add_parser(commands: Commands) -> None:
    """Add ``bench`` with what can be measured."""
    parser = commands.add_parser("bench", help="measure any OpenAI-compatible server", description=__doc__)
    benches = parser.add_subparsers(dest="bench_command", required=True)
    cancel = benches.add_parser(
        "cancel",
        help="load it with clients that hang up",
        description="Load a server with clients of which some hang up; measure what that does to it and to the others.",
        epilog="scenarios:\n" + "\n".join(f"  {name:16} {text}" for name, text in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_options(cancel.add_argument_group("server"))
    add_load_options(cancel.add_argument_group("load"))
    add_mix_options(cancel.add_argument_group("mix"))
    add_other_options(cancel.add_argument_group("other scenarios"))
    output = cancel.add_argument_group("output")
    add_option(output, "json", Path, None, "write everything: machine, options, every request, figures", metavar="FILE")
    add_option(output, "plots", Path, None, "draw plots into this folder, as PNG and SVG", metavar="DIR")
    cancel.set_defaults(run=run)


def add_server_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "url", str, "http://127.0.0.1:8000", "the server, with or without /v1")
    add_option(group, "model", str, None, "the model to ask for; the first that the server lists", metavar="NAME")
    add_option(group, "api", str, "completions", "which endpoint", choices=("completions", "chat"))
    add_switch(group, "stream", True, "ask for streams; scenarios that need first tokens always do")
    add_switch(group, "keep-alive", True, "use connections again, as most clients do")
    add_switch(group, "ignore-eos", True, "ask for answers of full length; not every server knows how")
    headers = "X-Supersede,X-Session-Id"
    text = "headers in which each scenario sends its supersede key; for llama-server: X-Conversation-Id"
    add_option(group, "supersede-headers", names, headers, text, metavar="NAMES")
    add_option(group, "api-key", str, "", "sent as bearer token", metavar="KEY")
    add_option(group, "extra", str, "{}", "further fields of every body", metavar="JSON")
    add_option(group, "timeout", seconds, 600.0, "a request that takes longer is an error", metavar="S")
    add_option(group, "pid", positive_int, None, "the server's process on this machine, whose CPU time is watched")


def add_load_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "scenario", str, "mix", "what is done to the server; see below", choices=tuple(SCENARIOS))
    add_option(group, "seed", int, 42, "the same seed picks the same requests, lengths and times again")
    add_option(
        group, "prompt-seed", str, None, "the same texts again; without it no server has seen them", metavar="TEXT"
    )
    add_option(
        group, "prompt-tokens", positive_int, None, "mean length of prompts; each scenario has its own", metavar="N"
    )
    add_option(group, "output-tokens", positive_int, None, "mean length of answers; each has its own", metavar="N")
    add_option(group, "percent", percents, "10", "share of requests to cut; with commas: a run for each", metavar="P")
    add_option(group, "delay", delay, "0.5", "from fully sent to the hang-up, S or S..S; 0: at once", metavar="S")


def add_mix_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "requests", positive_int, 50, "how many are measured")
    add_option(group, "warmup", natural, 2, "how many come before; none of them is cut")
    add_option(group, "concurrency", positive_int, 4, "clients, each with one request at a time")
    add_option(
        group, "rate", positive_float, None, "Poisson arrivals a second, instead of the closed loop", metavar="R"
    )
    add_option(
        group,
        "supersede-keys",
        natural,
        0,
        "keys that the clients share; the newest request of a key supersedes; 0: none",
    )
    add_option(group, "prompt-stddev", seconds, 0.0, "spread of the prompts' lengths", metavar="N")
    add_option(group, "output-stddev", seconds, 0.0, "spread of the answers' lengths", metavar="N")
    add_switch(group, "wait-for-rest", True, "with --pid and one client: after a hang-up wait until the server rests")


def add_other_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "runs", positive_int, 3, "repetitions (typing-storm, next-after-stop)")
    add_option(group, "keys", positive_int, 8, "keys typed (typing-storm)")
    add_option(group, "interval", seconds, 0.3, "from one key to the next (typing-storm)", metavar="S")
    add_option(group, "differ", str, "head", "where the typed prompts differ (typing-storm)", choices=("head", "tail"))
    add_option(group, "sockets", str, "kept", "of outdated requests (typing-storm)", choices=("kept", "closed"))
    add_switch(group, "supersede", True, "a newer key supersedes the older one (typing-storm)")
    add_option(group, "helpers", positive_int, 2, "clients beside the long answer (agents)")
    add_option(group, "helper-prompt-tokens", positive_int, 100, "length of their prompts (agents)")
    add_option(group, "helper-output-tokens", positive_int, 32, "length of their answers (agents)")
    add_option(group, "stop-after", seconds, 1.0, "from fully sent to the stop (next-after-stop)", metavar="S")


def run(arguments: argparse.Namespace) -> int:
    def with_its_packages() -> int:
        from pyllmcancel.bench import command

        return command.run(arguments)

    return run_with_extra("bench", EXTRA, with_its_packages)


def percents(text: str) -> tuple[float, ...]:
    values = tuple(float(part) for part in text.split(","))
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"must be from 0 to 100, not {text}")
    return values


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def delay(text: str) -> Delay:
    shortest, _, longest = text.partition("..")
    found = Delay(seconds(shortest), seconds(longest or shortest))
    if found.longest < found.shortest:
        raise argparse.ArgumentTypeError(f"ends before it begins: {text}")
    return found


def positive_float(text: str) -> float:
    value = seconds(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return value
