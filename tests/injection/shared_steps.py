"""An engine on a real model, a few requests that share its steps, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyllmcancel import _native
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import EngineClosedError
from pyllmcancel.events import Ending, FinishReason
from pyllmcancel.requests.request import Request
from tests.support.driver import RecordingSink

LIMIT = 60.0
NATIVE: Any = _native  # its stub, that of a release, has no fault injection

# Long enough for several chunks of a prompt, and for copies of a state on the way.
PROMPTS = (list(range(30, 130)), list(range(200, 240)), [*range(30, 110), *range(400, 420)])
CHOICES = (1, 2, 1)
ANSWER = 6
COMPLETE = {FinishReason.STOP, FinishReason.LENGTH}

Answer = tuple[tuple[int, ...], ...]


@contextmanager
def fault(call: str, nth: int, code: int = 0, *, after: bool = False, lasting: bool = False) -> Iterator[list[int]]:
    """Have the `nth` such call fail, and with `lasting` all later ones; yields a list that then has their number."""
    n_calls: list[int] = []
    NATIVE.set_fault(call, nth, code, after, lasting)
    try:
        yield n_calls
    finally:
        n_calls.append(NATIVE.clear_fault())


@dataclass
class SharedSteps:
    """One engine, and what its requests get when nothing fails."""

    engine: Engine
    undisturbed: list[Answer] = field(default_factory=list)
    alone: Answer = ()

    @classmethod
    def load(cls, path: Path, **options: Any) -> SharedSteps:
        sizes = {"ctx_size": 1024, "parallel": 3, "threads": 1, "batch_size": 32, "checkpoint_interval": 16}
        exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
        # The same prompts come again and again: with drafts their answers would be known without a step.
        config = EngineConfig(model=path, draft_sources=(), **sizes | exact | options)
        shared = cls(Engine.load(config))
        shared.undisturbed = [answer_of(sink) for _, sink in shared.meet()]
        shared.alone = shared.ask()
        assert all(len(answer[0]) == ANSWER for answer in shared.undisturbed)
        return shared

    def submit(self, prompt: list[int], *, n: int = 1) -> tuple[Request, RecordingSink]:
        sink = RecordingSink()
        params = generation_params(temperature=0.0, max_tokens=ANSWER, n=n)
        return self.engine.submit([prompt], params, sink), sink

    def meet(self, *, may_close: bool = False) -> list[tuple[Request, RecordingSink]]:
        """Submit all at once, and wait until each has ended; an engine that closes meanwhile refuses the last ones."""
        came = []
        with suppress(EngineClosedError) if may_close else nullcontext():
            for prompt, n in zip(PROMPTS, CHOICES, strict=True):
                came.append(self.submit(prompt, n=n))
        for _, sink in came:
            sink.ending()
        return came

    def ask(self) -> Answer:
        _, sink = self.submit(PROMPTS[0])
        assert sink.ending().finish_reason in COMPLETE
        return answer_of(sink)

    def check_outcome(self, came: list[tuple[Request, RecordingSink]], *, most_failed: int) -> list[Ending]:
        """One ending each; the right answer or an error that says something. Returns the errors."""
        failed = []
        for (_, sink), expected in zip(came, self.undisturbed[: len(came)], strict=True):
            ending = sink.ending()
            assert sink.record[-1] is ending
            if ending.finish_reason is FinishReason.ERROR:
                assert ending.error
                failed.append(ending)
            else:
                assert ending.finish_reason in COMPLETE
                assert answer_of(sink) == expected
        assert len(failed) <= most_failed, [ending.error for ending in failed]
        return failed

    def check_as_before(self) -> None:
        """The next request gets what it would have got, and no slot and no cell is left in use."""
        assert self.engine.failure is None
        assert self.ask() == self.alone
        counts = self.engine.counts()
        assert (counts.waiting, counts.running) == (0, 0)
        occupancy = self.engine.occupancy()
        assert (occupancy.slots, occupancy.cells) == (0, 0)

    def check_dead(self) -> None:
        assert self.engine.failure
        try:
            self.submit(PROMPTS[0])
        except EngineClosedError:
            return
        raise AssertionError("an engine that died took a request")


def answer_of(sink: RecordingSink) -> Answer:
    indices = sorted({delta.index for delta in sink.deltas})
    return tuple(tuple(sink.tokens(index)) for index in indices)
