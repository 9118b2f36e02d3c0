"""Beside busy programs: our defaults, fixed numbers of threads, and llama-server's defaults, in turn.

    python -m bench.busy --model build/qwen3-0.6b-q4_0.gguf --out build/busy.jsonl
    python -m bench.busy --loads 2 4 --turns 3 --out build/busy.jsonl   # more of some; the table is of all in the file

Starts the servers, and for each load as many programs that never rest; ends all of them. Each server in its turn, the
others at rest: one client streams an answer and leaves, and leaves again in the middle of a longer prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import PEERS, NotAvailableError, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.side_by_side.conditions import cpu_times
from bench.side_by_side.measurement import Subject, subject_of
from pyllmcancel.bench.report import describe_machine
from pyllmcancel.bench.server_truth import cpu_seconds
from pyllmcancel.models import packaged_model_path

LOADS = (0, 1, 2, 4, 8)
CTX_SIZE = 2048
WARM_UP = 8  # tokens, so that each server has just been at work, as it is for a client who goes on
PROMPT, ANSWER = 64, 1500
DECODE_SECONDS = 3.0
LONG_PROMPT = 512
LEAVE_AFTER = 0.7  # seconds, in the middle of the long prompt
# Each ends with its parent, however that ends.
NEVER_REST = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"
TICK = 1.0 / os.sysconf("SC_CLK_TCK")

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """A server as it is started; `threads` as the peer's own option has it."""

    name: str
    peer: str
    threads: int


def contenders(cores: int) -> list[Contender]:
    """Ours, ours with some fixed numbers of threads, and llama-server's own choice."""
    fixed = sorted({1, max(1, cores // 2), cores})
    return [
        Contender("defaults", "pyllmcancel", 0),
        *(Contender(f"--threads {count}", "pyllmcancel", count) for count in fixed),
        Contender("llama-server", "llama-server", -1),
    ]


@contextmanager
def busy_programs(count: int) -> Iterator[list[int]]:
    """As many processes that never rest; their ids."""
    programs = [subprocess.Popen([sys.executable, "-c", NEVER_REST]) for _ in range(count)]
    try:
        yield [program.pid for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()


async def measure(peer: RunningPeer, seed: int) -> Figures:
    """One client's requests, and two cancels."""
    async with subject_of(peer, effort=1.0, seed=seed) as subject:
        await subject.start(await subject.prompt(PROMPT), WARM_UP).ended()
        return await leave_in_answer(subject) | await leave_in_prompt(subject)


async def leave_in_answer(subject: Subject) -> Figures:
    call = subject.start(await subject.prompt(PROMPT), ANSWER)
    if not await call.first_token():
        raise RuntimeError(f"no first token: {call.exchange.error} {call.exchange.detail}")
    await asyncio.sleep(DECODE_SECONDS)
    left_at = call.cut()
    stop = await subject.rest_after(left_at)
    token_at = (await call.ended()).token_at
    return {
        "ttft": call.exchange.ttft,
        "tokens_per_second": (len(token_at) - 1) / (left_at - token_at[0]),
        "cancel_in_answer": stop.seconds,
    }


async def leave_in_prompt(subject: Subject) -> Figures:
    call = subject.start(await subject.prompt(LONG_PROMPT), WARM_UP)
    await call.sent()
    await asyncio.sleep(LEAVE_AFTER)
    stop = await subject.rest_after(call.cut())
    early = not (await call.ended()).token_at
    return {"cancel_in_prompt": stop.seconds if early else None}


@contextmanager
def watching_others(pids: Sequence[int]) -> Iterator[Figures]:
    """How many cores all programs but those took meanwhile, the benchmark's own client among them."""
    figures: Figures = {}
    began, used, known = time.monotonic(), cpu_times(), sum(map(cpu_seconds, pids))
    yield figures
    now = cpu_times()
    ticks = now.used - used.used + now.stolen - used.stolen
    others = ticks * TICK - (sum(map(cpu_seconds, pids)) - known)
    figures["others"] = round(others / (time.monotonic() - began), 2)


def run(arguments: argparse.Namespace) -> None:
    chosen = contenders(len(os.sched_getaffinity(0)))
    with ExitStack() as stack:
        servers: dict[str, RunningPeer] = {}
        for one in chosen:
            settings = Settings(
                model=arguments.model, port=free_port(), threads=one.threads, parallel=1, ctx_size=CTX_SIZE
            )
            try:
                servers[one.name] = stack.enter_context(running(PEERS[one.peer], settings))
            except NotAvailableError as error:
                tell(f"{one.name}: {error}")
        for turn in range(arguments.turns):
            for load in arguments.loads:
                take_turn(servers, load, turn, arguments)


def take_turn(servers: dict[str, RunningPeer], load: int, turn: int, arguments: argparse.Namespace) -> None:
    """Each server once beside a load, each time another first."""
    names = list(servers)
    first = turn % len(names)
    with busy_programs(load) as pids:
        for name in names[first:] + names[:first]:
            with watching_others([*pids, *(server.pid for server in servers.values())]) as conditions:
                figures = asyncio.run(measure(servers[name], seed=time.time_ns()))
            keep(arguments.out, {"model": arguments.model.name, "load": load, "server": name} | figures | conditions)


def keep(out: Path, entry: Figures) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as lines:
        lines.write(json.dumps(entry) + "\n")
    tell(
        f"load {entry['load']}, {entry['server']}: {entry['tokens_per_second']:.1f} tokens/s, {entry['others']} others"
    )


# -- the table ---------------------------------------------------------------------------------------------------------


def table(entries: Sequence[Figures]) -> str:
    """Medians by load and server; a ratio above 1 says that ours is better."""
    parts = []
    for title, key, shown, better in (
        ("decode, tokens/s", "tokens_per_second", "{:.1f}".format, max),
        ("first token, s", "ttft", "{:.2f}".format, min),
        ("cancel in an answer, ms", "cancel_in_answer", milliseconds, min),
        ("cancel in a prompt, ms", "cancel_in_prompt", milliseconds, min),
    ):
        names = list(dict.fromkeys(entry["server"] for entry in entries))
        rows = [[title, *names, "ours : best fixed", "ours : llama-server"], ["---"] * (len(names) + 3)]
        for load in sorted({entry["load"] for entry in entries}):
            found = medians([entry for entry in entries if entry["load"] == load], key)
            cells = [shown(found[name]) if name in found else "" for name in names]
            rows.append([f"beside {load}", *cells, *ratios(found, better)])
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(parts)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}"


def medians(entries: Sequence[Figures], key: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for entry in entries:
        if entry[key] is not None:
            values.setdefault(entry["server"], []).append(entry[key])
    return {name: statistics.median(found) for name, found in values.items()}


def ratios(found: dict[str, float], better: Callable[..., float]) -> list[str]:
    """Ours to the best fixed number of threads, and to llama-server."""
    ours = found.get("defaults")
    fixed = [value for name, value in found.items() if name.startswith("--threads")]
    others = [better(fixed) if fixed else None, found.get("llama-server")]
    return ["" if ours is None or other is None else ratio(ours, other, better) for other in others]


def ratio(ours: float, other: float, better: Callable[..., float]) -> str:
    """Above 1 in our favour; a server may well send no second token in the time, or stop at once."""
    above, below = (ours, other) if better is max else (other, ours)
    return f"{above / below:.2f}" if below > 0.0 else "-"


def tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=packaged_model_path(), help="GGUF file [the packaged one]")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS, metavar="N", help="busy programs beside it")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="file of the results, one JSON object a line; grows")
    arguments = parser.parse_args()
    run(arguments)
    entries = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    machine = describe_machine()
    print(f"{arguments.model.name}, {machine['cpu']}, {machine['cores']} cores\n")  # noqa: T201 - the result
    print(table([entry for entry in entries if entry["model"] == arguments.model.name]))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
