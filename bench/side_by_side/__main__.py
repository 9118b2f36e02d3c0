"""``python -m bench.side_by_side --model FILE --out FOLDER``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers import PEERS, NotAvailableError, Peer, Settings, another_build
from bench.peers.running import free_port, running
from bench.side_by_side.conditions import (
    cpu_times,
    describe_code,
    describe_peer,
    now,
    stolen_percent,
)
from bench.side_by_side.measurement import Bare, Figures, subject_of
from bench.side_by_side.measurements import MEASUREMENTS
from bench.side_by_side.parts import OtherRunError, Part, PartStore, describe_run, schedule
from pyllmcancel.bench.report import describe_machine

DEFAULT_PEERS = ("pyllmcancel", "llama-server")
MAX_REPEATS = 3


def main() -> int:
    arguments = parse()
    # Ended from outside, the servers under measurement are to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    store = PartStore(arguments.out)
    try:
        describe_run(arguments.out, run_of(arguments))
    except OtherRunError as error:
        tell(str(error))
        return 1
    began, failed = time.monotonic(), 0
    for part in schedule([MEASUREMENTS[name] for name in arguments.only], arguments.peers, arguments.rounds):
        if store.has(part):
            continue
        if arguments.at_most is not None and time.monotonic() - began > arguments.at_most:
            tell("time is over; the same command goes on from here")
            return 2
        try:
            failed += not carry_out(part, store, arguments)
        except KeyboardInterrupt:
            return 130
    return 1 if failed else 0


def carry_out(part: Part, store: PartStore, arguments: argparse.Namespace) -> bool:
    """Measure a part and keep what was found, or why nothing was; whether it went well."""
    content = measured(part, arguments)
    for _ in range(MAX_REPEATS):
        # The results decide neither whether to repeat, nor which attempt is kept.
        if content["stolen_percent"] <= arguments.max_steal:
            break
        tell(f"{part}: others took {content['stolen_percent']} % of the time, once more")
        content = min(content, measured(part, arguments), key=lambda one: one["stolen_percent"])
    store.keep(part, content)
    outcome = str(content.get("not_measured", "measured")).splitlines()[0]
    tell(f"{part}: {outcome}, {content['seconds']} s, {content['stolen_percent']} % stolen")
    return "failed" not in content


def measured(part: Part, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the results of one attempt, or why there are none, and the conditions."""
    started, before = time.monotonic(), cpu_times()
    content: dict[str, Any] = {"began": now(), "load_before": os.getloadavg()[0], **describe_code()}
    try:
        content["figures"] = asyncio.run(figures_of(part, arguments))
    except NotAvailableError as error:
        content["not_measured"] = str(error)
    except Exception as error:
        # One peer's failure is a result, and must not end the others' run.
        content["not_measured"] = f"{type(error).__name__}: {error}"
        content["failed"] = True
    content["seconds"] = round(time.monotonic() - started, 1)
    content["stolen_percent"] = round(stolen_percent(before, cpu_times()), 1)
    return content


async def figures_of(part: Part, arguments: argparse.Namespace) -> Figures:
    measurement = part.measurement
    if part.peer in measurement.others:
        return await measurement.others[part.peer](Bare(arguments.model, arguments.threads))
    settings = Settings(
        model=arguments.model,
        port=free_port(),
        threads=arguments.threads,
        parallel=measurement.parallel,
        ctx_size=measurement.ctx_size,
    )
    with running(peers_of(arguments)[part.peer], settings, arguments.out / "logs" / f"{part.name}.log") as peer:
        async with subject_of(peer, effort=arguments.effort, seed=part.round) as subject:
            return await measurement.measure(subject)


def peers_of(arguments: argparse.Namespace) -> dict[str, Peer]:
    """All that can be measured, by name."""
    others = [another_build(arguments.also_ours)] if arguments.also_ours else []
    return PEERS | {peer.name: peer for peer in others}


def run_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the facts that the run's parts have in common."""
    (arguments.out / "logs").mkdir(parents=True, exist_ok=True)
    return {
        "model": arguments.model.name,
        "model_mib": round(arguments.model.stat().st_size / 2**20, 1),
        "threads": arguments.threads,
        "effort": arguments.effort,
        "machine": describe_machine(),
        "peers": {name: describe_peer(peer) for name, peer in peers_of(arguments).items()},
        "commands": [" ".join(["python -m bench.side_by_side", *sys.argv[1:]])],
    }


def tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def parse() -> argparse.Namespace:
    lines = [f"  {name:24} {first_line(name)}" for name in MEASUREMENTS]
    parser = argparse.ArgumentParser(
        prog="python -m bench.side_by_side",
        description="The same measurements on several servers, in turn:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="GGUF file, the same for all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; parts in it are kept")
    some_peers = f"of {', '.join(PEERS)} [{' '.join(DEFAULT_PEERS)}]"
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=DEFAULT_PEERS, metavar="PEER", help=some_peers)
    text = "a checkout of this project with its own .venv, measured as well, by the name of `before`"
    parser.add_argument("--also-ours", type=Path, metavar="PATH", help=text)
    every = list(MEASUREMENTS)
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="NAME", help="of those above [all]")
    parser.add_argument("--rounds", type=int, default=1000, help="limit of each peer's turns")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads of each peer"
    )
    parser.add_argument("--effort", type=float, default=1.0, help="factor of repetitions and time; less is for trials")
    text = "measure a part once more, three times at most, if the host gave more of its time to other machines [100]"
    parser.add_argument("--max-steal", type=float, default=100.0, metavar="PERCENT", help=text)
    parser.add_argument("--at-most", type=float, metavar="S", help="begin no other part after this many seconds")
    arguments = parser.parse_args()
    if arguments.also_ours:
        arguments.peers = [*arguments.peers, another_build(arguments.also_ours).name]
    return arguments


def first_line(name: str) -> str:
    function = MEASUREMENTS[name].measure
    return (getattr(function, "func", function).__doc__ or "").strip().splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
