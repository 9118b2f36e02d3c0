"""From a raised flag to the return of the step, by phase, tokens in the ubatch, and threads."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from bench.native.tables import Row, Table, percentile, summary

UBATCHES = (8, 32, 64, 128, 256, 512)
CONTEXT = 1024
HISTORY = 64  # tokens before the one that a decode step computes


def measure(
    probe: Any, model: Any, name: str, *, threads: Sequence[int], ubatches: Sequence[int] = UBATCHES, samples: int = 25
) -> Table:
    """Raise a flag at random moments of a step, from another thread.

    A step is of `n_ubatch` tokens of a prompt or, in decode, of one token.
    """
    table = Table("abort-latency", "flag set to step returned", "ms")
    for n_threads in threads:
        for phase, n_tokens in (*(("prefill", n_ubatch) for n_ubatch in ubatches), ("decode", 1)):
            driver = probe.StepDriver(model, n_ctx=CONTEXT, n_batch=max(n_tokens, HISTORY), n_threads=n_threads)
            about: Row = {"model": name, "threads": n_threads, "phase": phase, "n_ubatch": n_tokens}
            history = HISTORY if phase == "decode" else 0
            table.rows.append(about | one_case(Step(driver, model.n_vocab, history, n_tokens), samples))
    return table


class Step:
    """The same step again and again: some tokens of a sequence, after its history."""

    def __init__(self, driver: Any, n_vocab: int, history: int, n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self._driver = driver
        self._history = history
        chance = random.Random(n_tokens)
        self._tokens = [chance.randrange(n_vocab) for _ in range(history + n_tokens)]

    def begin(self) -> list[tuple[int, int]]:
        """Return the items of the step, whose sequence was opened afresh."""
        self._driver.close(0, keep=False)
        self._driver.open(0, self._tokens)
        if self._history:
            self._driver.step([(0, self._history)])
        return [(0, self.n_tokens)]

    def whole_ns(self) -> int:
        """Nanoseconds of a step that nothing disturbs."""
        items = self.begin()
        began = time.perf_counter_ns()
        self._driver.step(items)
        return time.perf_counter_ns() - began

    def abort_after(self, delay_ns: int) -> Any:
        return self._driver.abort_after(self.begin(), delay_ns)


def one_case(step: Step, samples: int) -> Row:
    """Latencies of one kind of step; a step that ended before its flag was raised does not count."""
    chance = random.Random(1)
    step.whole_ns()
    whole_ns = step.whole_ns()
    latencies: list[float] = []
    for _ in range(10 * samples):
        timing = step.abort_after(int(chance.uniform(0.02, 0.98) * whole_ns))
        if timing.aborted:
            latencies.append(timing.latency_ns / 1e6)
        if len(latencies) == samples:
            break
    if not latencies:
        raise RuntimeError(
            f"no step of {step.n_tokens} tokens could be interrupted: each ended before its flag was raised"
        )
    spread = summary(latencies) | {"p99": round(percentile(latencies, 99), 3)}
    return {"step_ms": round(whole_ns / 1e6, 3), **spread}
