"""``python -m bench.drafting``"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bench.drafting as package
from bench.drafting import edits, throughput, typing_along
from bench.drafting.results import Result
from bench.drafting.servers import LLAMA, OFF, ON, Bench, contenders
from bench.drafting.texts import PURPOSES
from bench.side_by_side.conditions import cpu_times, describe_code, now, stolen_percent
from pyllmcancel.bench.report import describe_machine, write_json


class Scenario(NamedTuple):
    """A measurement, and the servers that run for it; None: all."""

    title: str
    measure: Callable[[Bench, argparse.Namespace], Awaitable[Result]]
    servers: tuple[str, ...] | None


def typing_in(style: typing_along.Style) -> Callable[[Bench, argparse.Namespace], Awaitable[Result]]:
    return lambda bench, given: typing_along.measure(
        bench, style, given.files, places=given.places, keys=given.keys, seed=given.seed
    )


OURS = (OFF, ON)
SCENARIOS = {
    "typing": Scenario(
        "keys along a suggestion, each after the last answer", typing_in(typing_along.PATIENT), (*OURS, LLAMA)
    ),
    "healed": Scenario("the same, with token healing", typing_in(typing_along.HEALED), (*OURS, LLAMA)),
    "hurry": Scenario(
        "healed keys of which most cancel the answer before", typing_in(typing_along.HURRIED), (*OURS, LLAMA)
    ),
    "sampling": Scenario("keys with temperature 0.8", typing_in(typing_along.SAMPLED), OURS),
    "edit": Scenario(
        "answers that return a function with a change",
        lambda bench, given: edits.measure(bench, given.files, count=given.edits, seed=given.seed),
        None,
    ),
    "random": Scenario(
        "random prompts, temperature 1.0: the worst case",
        lambda bench, given: throughput.measure_random(bench, pairs=given.pairs),
        OURS,
    ),
    "clients": Scenario(
        "edits and random prompts with 1, 4 and 8 clients",
        lambda bench, given: throughput.measure_clients(bench, given.files, turns=given.turns, seed=given.seed),
        OURS,
    ),
}


def main() -> int:
    given = parse()
    # Ended from outside, the servers under measurement are to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    document: dict[str, Any] = {
        "command": sys.argv,
        "machine": describe_machine(),
        "model": given.model.name,
        "threads": given.threads,
        **describe_code(),
        "results": {},
    }
    if given.logs is not None:
        given.logs.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in given.scenarios:
        try:
            document["results"][name] = carry_out(name, given)
        except Exception as error:
            # One scenario's failure is a result, and must not end the others.
            failed += 1
            tell(f"{name}: {type(error).__name__}: {error}")
            document["results"][name] = {"failed": f"{type(error).__name__}: {error}"}
        if given.out is not None:
            write_json(document, given.out)
    return 1 if failed else 0


def carry_out(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure on servers that were started for this scenario, and print what was found."""
    scenario = SCENARIOS[name]
    began, before, load = time.monotonic(), cpu_times(), os.getloadavg()
    missing: list[str] = []
    result = asyncio.run(measured(scenario, given, missing))
    conditions = {
        "began": now(),
        "seconds": round(time.monotonic() - began, 1),
        "load_average_before": load,
        "stolen_percent": round(stolen_percent(before, cpu_times()), 1),
        "not_measured": missing,
    }
    sys.stdout.write(f"{result.text()}\n\n")
    sys.stdout.flush()
    tell(f"{name}: {conditions['seconds']} s, {conditions['stolen_percent']} % stolen {'; '.join(missing)}")
    return conditions | result.as_json()


async def measured(scenario: Scenario, given: argparse.Namespace, missing: list[str]) -> Result:
    every = contenders(shlex.split(given.off), shlex.split(given.on))
    bench = Bench(given.model, given.threads, {name: every[name] for name in given.servers}, given.logs)
    wanted = given.servers if scenario.servers is None else [name for name in given.servers if name in scenario.servers]
    async with bench.all_running(wanted, missing):
        return await scenario.measure(bench, given)


def tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    lines = [f"  {name:10} {scenario.title}" for name, scenario in SCENARIOS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench.drafting",
        description=f"{package.__doc__}\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(contenders((), ()))
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="of those above; default: all")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file, the same for all")
    parser.add_argument("--threads", type=int, default=2, help="of each server; default: %(default)s")
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=f"of {', '.join(names)}; default: all",
    )
    parser.add_argument(
        "--off", default="--spec-type none", metavar="OPTIONS", help="ours without drafting; default: %(default)s"
    )
    parser.add_argument(
        "--on", default="", metavar="OPTIONS", help="ours with drafting; default: none, as drafting is on"
    )
    parser.add_argument(
        "--files", choices=PURPOSES, default="measuring", help="which of the library's files; default: %(default)s"
    )
    parser.add_argument("--places", type=int, default=3, help="places to type at; default: %(default)s")
    parser.add_argument("--keys", type=int, default=40, help="keys at a place; default: %(default)s")
    parser.add_argument("--edits", type=int, default=6, help="edits in each form; default: %(default)s")
    parser.add_argument("--pairs", type=int, default=24, help="random prompts; default: %(default)s")
    parser.add_argument("--turns", type=int, default=2, help="with each number of clients; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="all results, after each scenario")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="the servers' logs")
    given = parser.parse_args(arguments)
    if unknown := set(given.scenarios).difference(SCENARIOS):
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}")
    given.scenarios = given.scenarios or list(SCENARIOS)
    return given


if __name__ == "__main__":
    raise SystemExit(main())
