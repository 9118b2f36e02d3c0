"""Tokens per second of the core, its steps called from Python, beside llama.cpp's own benchmarks.

One run measures all of them in turn, as often as `rounds` says; ratios are of medians. The core also chooses each
token, greedily; the others take random ones. Both the core and llama-batched-bench run twice: with one set of cells for
all sequences, and with a part of the cells for each.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.native.tables import Row, Table
from bench.peers.programs import run_llama_tool
from pyllmcancel.sampling import SamplingParams

Speeds = dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """Prompt lengths, tokens to generate (after `n_prompt` of each sequence, in batches), and how often."""

    threads: int = 2
    prompts: Sequence[int] = (64, 128, 256, 512)
    n_generate: int = 32
    batches: Sequence[int] = (1, 4, 8)
    n_prompt: int = 64
    rounds: int = 3
    seed: int = 1


class Core:
    """A context of the core, big enough for the plan; its prompts are random tokens."""

    def __init__(self, native: Any, model: Any, plan: Plan, *, unified: bool) -> None:
        self.native, self.model, self.plan = native, model, plan
        part = plan.n_prompt + plan.n_generate + 1
        n_seq_max = max(plan.batches)
        cells = max(*plan.prompts, n_seq_max * part) if unified else n_seq_max * max(*plan.prompts, part)
        self.context = native.Context(
            model, n_ctx=cells, n_seq_max=n_seq_max, n_batch=512, n_threads=plan.threads, kv_unified=unified
        )
        self.chance = random.Random(plan.seed)

    def open(self, n_sequences: int, n_prompt: int) -> None:
        for seq in range(n_sequences):
            tokens = [self.chance.randrange(self.model.n_vocab) for _ in range(n_prompt)]
            sampler = self.native.Sampler(self.model, SamplingParams(temperature=0.0))
            self.context.open(seq, tokens, sampler, self.native.CancelFlag())

    def close(self, n_sequences: int) -> None:
        for seq in range(n_sequences):
            self.context.close(seq, keep=False)

    def wake(self) -> None:
        """Have the compute threads spin, as they do between steps."""
        self.open(1, 1)
        self.context.step([(0, 1)])
        self.close(1)

    def rest(self) -> None:
        """Have them sleep: they would spin on the cores of the next measurement."""
        self.context.rest()

    def prefill(self, n_prompt: int) -> float:
        """Tokens per second of one prompt in one step."""
        self.wake()
        self.open(1, n_prompt)
        begin = time.perf_counter()
        self.context.step([(0, n_prompt)])
        seconds = time.perf_counter() - begin
        self.close(1)
        self.rest()
        return n_prompt / seconds

    def generate(self, n_sequences: int, n_prompt: int) -> float:
        """Return tokens per second of a number of sequences that generate together."""
        self.open(n_sequences, n_prompt)
        for seq in range(n_sequences):
            self.context.step([(seq, n_prompt)])
        items = [(seq, 1) for seq in range(n_sequences)]
        begin = time.perf_counter()
        for _ in range(self.plan.n_generate):
            self.context.step(items)
        seconds = time.perf_counter() - begin
        self.close(n_sequences)
        self.rest()
        return n_sequences * self.plan.n_generate / seconds


def measure(native: Any, path: Path, name: str, plan: Plan) -> Table:
    """All in turn, `rounds` times; NotAvailableError if llama.cpp's tools are not built."""
    model = native.Model.load(path)
    cores = {unified: Core(native, model, plan, unified=unified) for unified in (True, False)}
    for core in cores.values():
        core.prefill(min(plan.prompts))  # as the others warm up: the model's pages are mapped now
    rounds = [one_round(cores, path, plan) for _ in range(plan.rounds)]
    return Table("throughput", "the core beside llama.cpp's own benchmarks", "tokens/s", list(rows(rounds, name, plan)))


def one_round(cores: Mapping[bool, Core], path: Path, plan: Plan) -> dict[str, tuple[Speeds, Speeds]]:
    """The core's speeds and the peer's, by peer, each by what was measured."""
    single: Speeds = {f"pp{n}": cores[True].prefill(n) for n in plan.prompts}
    single[f"tg{plan.n_generate}"] = cores[True].generate(1, 1)
    found = {"llama-bench": (single, llama_bench(path, plan))}
    for unified, core in cores.items():
        ours = {f"tg{plan.n_generate}x{n}": core.generate(n, plan.n_prompt) for n in plan.batches}
        cells = "one set of cells" if unified else "divided cells"
        found[f"llama-batched-bench, {cells}"] = ours, batched_bench(path, plan, unified=unified)
    return found


def llama_bench(path: Path, plan: Plan) -> Speeds:
    """llama-bench's tokens per second of each prompt and of one generation, after its warm-up."""
    sizes = ("-p", ",".join(map(str, plan.prompts)), "-n", plan.n_generate)
    rows = run_llama_tool("llama-bench", "-m", path, "-t", plan.threads, "-r", 1, "-o", "jsonl", *sizes)
    return {f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}": float(row["avg_ts"]) for row in rows}


def batched_bench(path: Path, plan: Plan, *, unified: bool) -> Speeds:
    """llama-batched-bench's tokens per second of all sequences together while they generate."""
    arguments = (
        *("-m", path, "-t", plan.threads, "-tb", plan.threads, "-b", 512, "-ub", 512, "--output-format", "jsonl"),
        *("-npp", plan.n_prompt, "-ntg", plan.n_generate, "-npl", ",".join(map(str, plan.batches))),
        *("-c", max(plan.batches) * (plan.n_prompt + plan.n_generate), *(["-kvu"] if unified else [])),
    )
    rows = run_llama_tool("llama-batched-bench", *arguments)
    return {f"tg{plan.n_generate}x{row['pl']}": float(row["speed_tg"]) for row in rows}


def rows(rounds: Sequence[Mapping[str, tuple[Speeds, Speeds]]], name: str, plan: Plan) -> Iterator[Row]:
    """Medians over the rounds, and the core's over each peer's for the same thing."""
    for peer, (ours, _) in rounds[0].items():
        for what in ours:  # a KeyError where the peer's program did not report it
            core, other = (statistics.median(found[peer][side][what] for found in rounds) for side in (0, 1))
            yield {
                "model": name,
                "threads": plan.threads,
                "what": what,
                "peer": peer,
                "core": round(core, 2),
                "peer_speed": round(other, 2),
                "ratio": round(core / other, 3),
                "rounds": len(rounds),
            }
