"""The pause between two decode steps, and tokens per second, with and without steps ahead: a whole engine, in turn.

The pause is from the end of a step, its sampling included, to the beginning of the next one, by the core's own clock.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.native.tables import Row, Table, percentile
from pyllmcancel import _native
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.token_stream import ThreadSink
from pyllmcancel.step import StepResult, StepStatus

N_PROMPT = 32
CLIENTS = (1, 4, 8)
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.8, "seed": 1}}


class TimedContext(_native.Context):
    """Keeps, of each step: sequences, when it began, how long it computed, how long it sampled, all in microseconds."""

    times: list[tuple[int, int, int, int]]

    def step(self, *arguments: Any, **options: Any) -> StepResult:
        return self._timed(super().step(*arguments, **options))

    def collect(self, **options: Any) -> StepResult:
        return self._timed(super().collect(**options))

    def _timed(self, result: StepResult) -> StepResult:
        decodes = result.status is StepStatus.OK and all(row.n_tokens == 1 for row in result.rows)
        n_rows = len(result.rows) if decodes else 0
        self.times.append((n_rows, result.began_us, result.decode_us, result.sample_us))
        return result


class Run:
    """An engine of a loaded model; `steps_ahead` as in `EngineConfig`."""

    def __init__(
        self, model: Any, n_clients: int, n_tokens: int, *, threads: int, gpu_layers: int, ahead: bool
    ) -> None:
        config = EngineConfig(parallel=n_clients, threads=threads, steps_ahead=ahead, draft_sources=())
        self.context = TimedContext(
            model,
            n_ctx=n_clients * (N_PROMPT + n_tokens + 1),
            n_seq_max=n_clients,
            n_batch=max(N_PROMPT, n_clients),
            n_threads=threads,
            kv_unified=gpu_layers != 0,
        )
        self.context.times = []
        self.engine = Engine(Generation(self.context, config, _native))
        self.n_clients, self.n_tokens = n_clients, n_tokens

    def generate(self, sampling: dict[str, Any]) -> tuple[float, list[float], list[float]]:
        """Tokens per second of the steps that all clients share, their pauses, and how long each sampled, in us."""
        chance, model = random.Random(1), self.engine.model
        self.context.times.clear()
        params = generation_params(max_tokens=self.n_tokens, ignore_eos=True, **sampling)
        prompts = [[chance.randrange(model.n_vocab) for _ in range(N_PROMPT)] for _ in range(self.n_clients)]
        # One request, so that all are there when the first one begins.
        request = self.engine.submit(prompts, params, ThreadSink())
        if request.ended.result().finish_reason is not FinishReason.LENGTH:
            raise RuntimeError("a request did not get all its tokens")
        times = [one for one in self.context.times if one[0] == self.n_clients]
        pauses = [after[1] - sum(before[1:]) for before, after in pairwise(times)]
        seconds = (sum(times[-1][1:]) - times[0][1]) / 1e6
        return (
            self.n_clients * len(times) / seconds,
            [float(pause) for pause in pauses],
            [float(one[3]) for one in times],
        )


def measure(
    path: Path,
    name: str,
    *,
    threads: int,
    clients: Sequence[int] = CLIENTS,
    n_tokens: int = 64,
    rounds: int = 5,
    gpu_layers: int = 0,
) -> Table:
    """Both in turn, `rounds` times; each begins with a run that is not counted."""
    table = Table("step-pause", "the pause between two decode steps", "µs")
    model = _native.Model.load(path, n_gpu_layers=gpu_layers)
    for n_clients in clients:
        options = {"threads": threads, "gpu_layers": gpu_layers}
        runs = {ahead: Run(model, n_clients, n_tokens, **options, ahead=ahead) for ahead in (False, True)}
        try:
            for how, sampling in SAMPLINGS.items():
                about: Row = {"model": name, "threads": threads, "clients": n_clients, "sampling": how}
                table.rows.extend(about | row for row in compared(runs, sampling, rounds))
        finally:
            for run in runs.values():
                run.engine.close()
    return table


def compared(runs: dict[bool, Run], sampling: dict[str, Any], rounds: int) -> Iterator[Row]:
    speeds: dict[bool, list[float]] = {ahead: [] for ahead in runs}
    pauses: dict[bool, list[float]] = {ahead: [] for ahead in runs}
    sampled: dict[bool, list[float]] = {ahead: [] for ahead in runs}
    turns = list(runs)
    for number in range(rounds + 1):
        turns.reverse()
        for ahead in turns:
            speed, found, sample = runs[ahead].generate(sampling)
            if number:
                speeds[ahead].append(speed)
                pauses[ahead] += found
                sampled[ahead] += sample
    before = statistics.median(speeds[False])
    for ahead in runs:
        speed = statistics.median(speeds[ahead])
        yield {
            "ahead": ahead,
            "n": len(pauses[ahead]),
            "p50": percentile(pauses[ahead], 50),
            "p99": percentile(pauses[ahead], 99),
            "sampling_p50": percentile(sampled[ahead], 50),
            "tokens_per_second": round(speed, 1),
            "ratio": round(speed / before, 3),
        }
