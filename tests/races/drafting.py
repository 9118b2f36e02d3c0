"""Engines on tiny models that draft in a context beside the model's, or do not draft."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyllmcancel import _native
from pyllmcancel._native import Context
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.requests.request import Request
from tests.native.conftest import SAME_TOKENS_IN_COMPANY
from tests.support.driver import RecordingSink, Watcher
from tests.support.threads import N_THREADS

PROMPTS = [[(13 * n + 7 * i) % 900 for n in range(40 + 30 * i)] for i in range(3)]
LENGTH = 80


class FlatCosts:
    """Costs of steps at which drafts pay, whatever else runs on this machine."""

    def of(self, n_rows: int) -> float:
        return 1.0 + 0.01 * n_rows

    def observe(self, n_rows: int, seconds: float) -> None: ...


class Drafting:
    """An engine whose model computes in `context`, and whose drafts in `draft_context`, if it drafts."""

    def __init__(self, context: Context, draft_context: Context | None, config: EngineConfig, drafts: Any) -> None:
        self.watcher, self.draft_context = Watcher(), draft_context
        self.generation = Generation(context, config, _native, drafts)
        self.generation._drafts._costs = FlatCosts()  # type: ignore[assignment]
        self.engine = Engine(self.generation, observer=self.watcher)

    def submit(self, prompt: list[int], **options: Any) -> tuple[Request, RecordingSink]:
        sink = RecordingSink()
        params = generation_params(**{"temperature": 0.0, "max_tokens": LENGTH, "ignore_eos": True} | options)
        return self.engine.submit([prompt], params, sink), sink

    def answer(self, prompt: list[int], **options: Any) -> list[int]:
        return self.answers([prompt], **options)[0]

    def answers(self, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[list[int]]:
        sinks = [self.submit(prompt, **options)[1] for prompt in prompts]
        for sink in sinks:
            assert sink.ending().finish_reason is FinishReason.LENGTH
        return [sink.tokens() for sink in sinks]

    def counts(self) -> tuple[int, int]:
        """Return the numbers of drafted and of accepted tokens so far; for use when all requests have ended."""
        parts = [part for step in self.watcher.steps for part in step.sequences]
        return sum(part.n_drafted for part in parts), sum(part.n_accepted for part in parts)

    def drafted_each_step(self) -> float:
        """Return how many tokens are drafted in a step of a long answer."""
        self.answer(PROMPTS[0], max_tokens=400)
        return self.counts()[0] / len(self.watcher.steps)


def context_options(config: EngineConfig, n_ctx: int = 3 * 1024) -> dict[str, Any]:
    """Return the options of contexts in which company changes no token."""
    sizes: dict[str, Any] = {"n_ctx": n_ctx, "n_seq_max": config.parallel, "n_batch": 64, "n_threads": N_THREADS}
    return sizes | SAME_TOKENS_IN_COMPANY | {"kv_unified": config.kv_unified is True}


@contextmanager
def making(make: Callable[..., Drafting]) -> Iterator[Callable[..., Drafting]]:
    made: list[Drafting] = []

    def make_one(*arguments: Any, **options: Any) -> Drafting:
        made.append(make(*arguments, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.engine.close()
        assert one.engine.failure is None


def check_cancel_in_a_draft(drafting: Drafting, expected: list[list[int]], poll: int, n_later: int) -> None:
    """Cancel the first of three requests at a poll of a draft's step; all other tokens are those that are expected."""
    context, drafts_begin = drafting.draft_context, threading.Event()

    def trap(record: StepRecord) -> None:
        drafted = any(part.n_drafted for part in record.sequences)
        if asked and drafted and not drafts_begin.is_set():  # the engine may be sooner than `submit` returns
            context.raise_at(poll, asked[0][0].cancellation.flag, n_later=n_later)  # type: ignore[arg-type]
            drafts_begin.set()

    drafting.watcher.on_step_done = trap
    asked: list[tuple[Request, RecordingSink]] = []
    asked.append(drafting.submit(PROMPTS[0]))
    asked += [drafting.submit(prompt) for prompt in PROMPTS[1:]]
    assert drafts_begin.wait(60)
    drafting.engine.cancel(asked[0][0])
    first, *others = (sink for _, sink in asked)
    assert [sink.ending().finish_reason for sink in others] == [FinishReason.LENGTH] * 2
    assert [sink.tokens() for sink in others] == expected[1:]
    assert first.tokens() == expected[0][: len(first.tokens())]
    first.ending()
    # What the cancel left in the cells of both contexts is true.
    assert drafting.answers() == expected
