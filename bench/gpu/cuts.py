"""The core alone: prefill with 0 to 16 cuts a step, decode with none, and cancels at random moments of a prompt."""

from __future__ import annotations

import math
import os
import random
import statistics
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np

from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus

Row = dict[str, Any]
NO_CALLBACK = math.inf
NO_CUTS = 1e9
CUTS = (2, 4, 8, 16)
DECODED = 64
N_THREADS = min(4, len(os.sched_getaffinity(0)))  # more than cores would spin against each other
GREEDY = SamplingParams(temperature=0.0)


class Prompt:
    """A prompt on sequence 0 of a context, computed in steps of `chunk` tokens."""

    def __init__(self, model: Model, n_tokens: int, chunk: int, cut_seconds: float | None) -> None:
        chance = random.Random(n_tokens)
        self.tokens = [chance.randrange(100, min(model.n_vocab, 50_000)) for _ in range(n_tokens)]
        self.chunk = chunk
        self.seconds_per_token = 1.0  # the cost of a token that the gate assumes
        self._model = model
        n_ctx = n_tokens + DECODED + 256
        self.context = Context(
            model, n_ctx=n_ctx, n_seq_max=1, n_batch=chunk, n_threads=N_THREADS, cut_seconds=cut_seconds
        )

    def open(self, *, reuse: bool) -> CancelFlag:
        flag = CancelFlag()
        self.context.close(0, keep=True)
        self.context.open(0, self.tokens, Sampler(self._model, GREEDY), flag, n_reusable=len(self.tokens) * reuse)
        return flag

    def compute(self) -> StepStatus:
        """The rest of the prompt; stops at the first step that is aborted."""
        while (n_left := len(self.tokens) - self.context.n_committed(0)) > 0:
            n_step = min(self.chunk, n_left)
            result = self.context.step([(0, n_step)], fixed_cost=0.0, cost_per_token=self.seconds_per_token)
            if result.status is not StepStatus.OK:
                return result.status
        return StepStatus.OK

    def prefill_seconds(self) -> float:
        self.open(reuse=False)
        began = time.perf_counter()
        assert self.compute() is StepStatus.OK
        return time.perf_counter() - began

    def decode_seconds(self) -> float:
        """Seconds a token, after the prompt."""
        began = time.perf_counter()
        for _ in range(DECODED):
            self.context.step([(0, 1)], fixed_cost=0.0, cost_per_token=self.seconds_per_token)
        return (time.perf_counter() - began) / DECODED

    def last_logits(self) -> np.ndarray[Any, Any]:
        logits = self.context.logits(0)
        assert logits is not None
        return logits.copy()


def measure(options: Namespace) -> Iterator[Row]:
    model = Model.load(options.model, n_gpu_layers=options.gpu_layers)
    for chunk in options.chunks:
        yield from cost(model, options.prompts[0], chunk, options.rounds)
    for n_tokens in options.prompts:
        for chunk in options.chunks:
            yield latency(model, n_tokens, chunk, options.trials)


def cost(model: Model, n_tokens: int, chunk: int, rounds: int) -> Iterator[Row]:
    """Prefill and decode without the callback, with it, and with several numbers of cuts a step, in turn."""
    plain = Prompt(model, n_tokens, chunk, NO_CALLBACK)
    plain.prefill_seconds()
    per_token = plain.prefill_seconds() / n_tokens
    step_seconds = per_token * chunk
    variants = {"no callback": plain, "0 cuts": Prompt(model, n_tokens, chunk, NO_CUTS)}
    for n_cuts in CUTS:
        variants[f"{n_cuts} cuts"] = Prompt(model, n_tokens, chunk, step_seconds / (n_cuts + 1))
    prefill: dict[str, list[float]] = {name: [] for name in variants}
    decode: dict[str, list[float]] = {name: [] for name in variants}
    for variant in variants.values():
        variant.seconds_per_token = per_token
        variant.prefill_seconds()
    for _ in range(rounds):
        for name, variant in variants.items():
            prefill[name].append(variant.prefill_seconds())
            decode[name].append(variant.decode_seconds())
    for name in variants:
        yield {
            "what": "cost of cuts",
            "prompt": n_tokens,
            "chunk": chunk,
            "variant": name,
            "step_ms": step_seconds * 1e3,
            "prefill_tokens_per_second": n_tokens / statistics.median(prefill[name]),
            "prefill_ratio": statistics.median(prefill["no callback"]) / statistics.median(prefill[name]),
            "decode_ms": statistics.median(decode[name]) * 1e3,
            "decode_ratio": statistics.median(decode["no callback"]) / statistics.median(decode[name]),
        }


def latency(model: Model, n_tokens: int, chunk: int, trials: int) -> Row:
    """From a raised flag, at random moments of a prompt, to the step's return; and what the next request gets."""
    chance = random.Random(1)
    prompt = Prompt(model, n_tokens, chunk, None)
    prompt.prefill_seconds()
    seconds = prompt.prefill_seconds()
    prompt.seconds_per_token = seconds / n_tokens
    prompt.prefill_seconds()
    expected = prompt.last_logits()
    latencies: list[float] = []
    n_wrong = 0
    while len(latencies) < trials:
        flag = prompt.open(reuse=False)
        raised: list[float] = []

        def raise_flag(flag: CancelFlag = flag, raised: list[float] = raised) -> None:
            raised.append(time.perf_counter())
            flag.set()

        timer = threading.Timer(chance.uniform(0.02, 0.95) * seconds, raise_flag)
        timer.start()
        status = prompt.compute()
        returned = time.perf_counter()
        timer.join()
        if status is StepStatus.ABORTED:
            latencies.append(returned - raised[0])
            prompt.open(reuse=True)
            assert prompt.compute() is StepStatus.OK
            n_wrong += not np.array_equal(prompt.last_logits(), expected)
    p50, p99 = np.percentile(latencies, [50, 99])
    return {
        "what": "flag raised to step returned",
        "prompt": n_tokens,
        "chunk": chunk,
        "prefill_seconds": seconds,
        "step_ms": seconds / n_tokens * chunk * 1e3,
        "cancels": trials,
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "max_ms": max(latencies) * 1e3,
        "resumed_with_other_logits": n_wrong,
    }
