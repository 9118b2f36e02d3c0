"""The cost of gaps between running sequences, with divided cells: ``python -m bench.neighbours --model FILE.gguf``.

First, steps of four sequences that are neighbours, and of four that are not, in turn, and what a copy costs.

Then clients that come and go. Each asks, reads its answer, is away for some steps, and asks again: a new prompt, or its
conversation with a new turn, whose prefix is kept in some slot. The schedule is counted in steps, so that it is the
same in every round. Rounds in which running sequences stay where they are, and rounds in which they are moved beside
each other, take turns. Printed: tokens for each second of the processor and of the clock (medians of the rounds; in
brackets the median and the range of the ratios), graphs for each step of several clients, the share of them that were
used again, and the moves. Answers are compared, unless the model's may depend on their company.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.tables import head, line
from pyllmcancel import EngineConfig, _native
from pyllmcancel._native import Model
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.context_options import context_options
from pyllmcancel.engine.generation import Generation
from pyllmcancel.requests.observer import NullObserver
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import ThreadSink
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.scheduling.neighbours import runs_of
from pyllmcancel.scheduling.workload import Finished

LONGEST = 1024  # tokens of a conversation, and of a slot
GREEDY = SamplingParams(temperature=0.0)
LAYOUTS: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 3, 4), (0, 2, 4, 5), (0, 2, 4, 6))
STEPS_OF_LAYOUT = 4
COLUMNS_OF_LAYOUT = ("sequences", "graphs", "processor time of a step", "used again")
COLUMNS = ("clients", "sequences", "tokens/s of processor", "of the clock", "graphs a step", "used again", "moves")


@dataclass(eq=False)
class Client:
    """Asks again and again; what it asks depends on its own `chance` only."""

    chance: random.Random
    n_vocab: int
    conversation: list[int] = field(default_factory=list)
    comes_at: int = 0
    request: Request | None = None

    def ask(self, generation: Generation) -> Request:
        n_answer, n_new = self.chance.randrange(16, 128), self.chance.randrange(16, 128)
        begins_anew = self.chance.random() < 0.5
        if begins_anew or len(self.conversation) + n_new + n_answer >= LONGEST:
            self.conversation = []
        self.conversation += [self.chance.randrange(100, min(self.n_vocab, 40_000)) for _ in range(n_new)]
        params = generation_params(temperature=0.0, max_tokens=n_answer, ignore_eos=True)
        self.request = generation.request()
        generation.fill(self.request, [self.conversation], params, ThreadSink())
        return self.request

    def leave(self, step: int) -> list[int]:
        assert self.request is not None
        answer = self.request.choices[0].generated
        self.conversation = [*self.conversation, *answer]
        self.comes_at, self.request = step + self.chance.randrange(64), None
        return answer


class Run(NamedTuple):
    """One round. Graphs are those of steps that generate for several clients."""

    answers: list[list[int]]
    cpu_seconds: float
    seconds: float
    n_steps: int
    n_graphs: int
    n_reused: int
    n_moved: int
    comparable: bool  # an answer does not depend on its company


def run(model: Model, n_clients: int, n_slots: int, n_steps: int, threads: int, *, gathers: bool) -> Run:
    config = EngineConfig(
        parallel=n_slots, ctx_size=n_slots * LONGEST, kv_unified=False, threads=threads, draft_sources=()
    )
    context = _native.Context(model, **context_options(model, config), **config.thread_options())
    generation = Generation(context, config, _native)
    generation.scheduler.gathers = gathers
    clients = [Client(random.Random(number), model.n_vocab) for number in range(n_clients)]
    answers: list[list[int]] = []
    graphs: list[tuple[int, int]] = []
    cpu, began = time.process_time(), time.perf_counter()
    for step in range(n_steps):
        for client in clients:
            if client.request is None and client.comes_at <= step:
                generation.admit(client.ask(generation), NullObserver())
        items, _ = generation.plan(NullObserver())
        if not items:
            continue
        n_reused = context.graph_counts().reused
        updates = generation.take(generation.compute(items).rows, NullObserver())
        if len(items) > 1:
            graphs.append((len(runs_of(item.seq for item in items)), context.graph_counts().reused - n_reused))
        ended = {update.request for update in updates if isinstance(update, Finished)}
        answers += [client.leave(step) for client in clients if client.request in ended]
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - began
    same = generation.varies_because is None
    n_graphs, n_reused = map(sum, zip(*graphs, strict=True))
    return Run(answers, cpu, seconds, len(graphs), n_graphs, n_reused, generation.scheduler.n_moved, same)


def rows(rounds: Sequence[tuple[Run, Run]], n_clients: int) -> list[str]:
    """Lines of the table: where sequences stay, and where they are moved."""
    found = []
    for name, runs in zip(("stay", "move"), zip(*rounds, strict=True), strict=True):
        one = runs[0]
        n_tokens = sum(map(len, one.answers))
        speeds = [
            f"{n_tokens / statistics.median(getattr(run, time) for run in runs):.1f} ({ratios(rounds, time)})"
            if name == "move"
            else f"{n_tokens / statistics.median(getattr(run, time) for run in runs):.1f}"
            for time in ("cpu_seconds", "seconds")
        ]
        counts = (f"{one.n_graphs / one.n_steps:.2f}", f"{one.n_reused / one.n_graphs:.0%}", one.n_moved)
        found.append(line((n_clients, name, *speeds, *counts)))
    return found


def ratios(rounds: Sequence[tuple[Run, Run]], time: str) -> str:
    found = sorted(getattr(stay, time) / getattr(move, time) for stay, move in rounds)
    return f"{statistics.median(found):.2f}; {found[0]:.2f} to {found[-1]:.2f}"


def layouts(model: Model, threads: int, rounds: int) -> list[str]:
    """Lines of the first table. The fastest of a round's steps counts, since other programs make steps slower."""
    config = EngineConfig(parallel=8, ctx_size=8 * LONGEST, kv_unified=False, threads=threads)
    context = _native.Context(model, **context_options(model, config), **config.thread_options())
    chance = random.Random(1)
    for seq in range(8):
        tokens = [chance.randrange(100, min(model.n_vocab, 40_000)) for _ in range(64)]
        context.open(seq, tokens, _native.Sampler(model, GREEDY), _native.CancelFlag())
        context.step([(seq, 64)])
    times: dict[tuple[int, ...], list[float]] = {seqs: [] for seqs in LAYOUTS}
    reused = dict.fromkeys(LAYOUTS, 0)
    for _ in range(rounds):
        for seqs in LAYOUTS:
            found = []
            context.step([(seq, 1) for seq in seqs])
            before = context.graph_counts().reused
            for _ in range(STEPS_OF_LAYOUT):
                began = time.process_time()
                context.step([(seq, 1) for seq in seqs])
                found.append(time.process_time() - began)
            times[seqs].append(min(found))
            reused[seqs] += context.graph_counts().reused - before
    first = statistics.median(times[LAYOUTS[0]])
    return [
        line(
            (
                " ".join(map(str, seqs)),
                len(runs_of(seqs)),
                f"{statistics.median(found) * 1e3:.1f} ms ({statistics.median(found) / first:.2f})",
                f"{reused[seqs] / (rounds * STEPS_OF_LAYOUT * len(runs_of(seqs))):.0%}",
            )
        )
        for seqs, found in times.items()
    ]


def copies(model: Model, threads: int, rounds: int) -> str:
    """A line that says what it costs to copy the cells of one sequence into those of another."""
    config = EngineConfig(parallel=2, ctx_size=2 * LONGEST, kv_unified=False, threads=threads)
    context = _native.Context(model, **context_options(model, config), **config.thread_options())
    chance = random.Random(1)
    tokens = [chance.randrange(100, min(model.n_vocab, 40_000)) for _ in range(512)]
    context.open(0, tokens, _native.Sampler(model, GREEDY), _native.CancelFlag())
    while context.n_committed(0) < len(tokens):
        context.step([(0, 64)])
    found = []
    for _ in range(rounds + 1):
        began = time.process_time()
        copied = context.share_prefix(0, 1, len(tokens), max_bytes=sys.maxsize)
        found.append((time.process_time() - began) * 1e3)
        if not copied:
            return "the cells of this model are not copied, and nothing is moved"
    size = context.swap_bytes(0) / 1e6
    times = f"{found[0]:.1f} ms into new memory, later {statistics.median(found[1:]):.1f} ms"
    return f"copying {len(tokens)} tokens ({size:.1f} MB) takes {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    model = Model.load(arguments.model)
    first = [*head(COLUMNS_OF_LAYOUT), *layouts(model, arguments.threads, 2 * arguments.rounds + 1)]
    copied = copies(model, arguments.threads, arguments.rounds)
    sys.stdout.write("\n".join([*first, "", copied, "", *head(COLUMNS, text=2), ""]))
    sys.stdout.flush()
    for n_clients in arguments.clients:
        sizes = (n_clients, arguments.slots, arguments.steps, arguments.threads)
        rounds = []
        for number in range(arguments.rounds):
            order = (False, True) if number % 2 == 0 else (True, False)
            turns = {gathers: run(model, *sizes, gathers=gathers) for gathers in order}
            rounds.append((turns[False], turns[True]))
        sys.stdout.write("\n".join(rows(rounds, n_clients)) + "\n")
        sys.stdout.flush()
        if any(stay.comparable and stay.answers != move.answers for stay, move in rounds):
            raise SystemExit("the answers differ")


if __name__ == "__main__":
    main()
