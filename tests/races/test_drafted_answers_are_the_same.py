"""Random requests that extend, repeat and cut earlier ones have the same answers with drafts and without."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.events import Delta, Event, FinishReason
from pyllmcancel.requests.request import Request
from pyllmcancel.step import StepItem, StepResult
from tests.races.drafting import FlatCosts
from tests.support import tiny_models
from tests.support.driver import RecordingSink
from tests.support.marks import mostly_long
from tests.support.threads import N_THREADS

N_ROUNDS = 60
N_CTX, N_VOCAB = 256, 1024
# Each is part of a request with a probability of its own.
OPTIONS: list[tuple[float, dict[str, list[Any]]]] = [
    (0.5, {"token_healing": [True]}),
    (0.2, {"repeat_penalty": [1.5, 0.8], "penalty_last_n": [-1, 3]}),
    (0.1, {"dry_multiplier": [0.8], "dry_penalty_last_n": [-1, 20]}),
    (0.2, {"logit_bias": [((5, 4.0), (220, float("-inf")))]}),
    (0.2, {"ignore_eos": [True]}),
    (0.2, {"n_logprobs": [0, 2]}),
    (0.1, {"temperature": [0.3, 1.5], "seed": [1, 2]}),
    (0.1, {"n": [2, 3]}),
    (0.2, {"stop": [("e",), (" ", "th")], "stop_shown": [True, False]}),
    (0.1, {"stop_tokens": [frozenset(range(0, N_VOCAB, 20))]}),
    (0.1, {"draft_max": [0, 1, 3]}),
    (0.1, {"reuse_prefix": [False]}),
    (0.2, {"prediction": [(5, 6, 7, 8) * 4, tuple(range(30))]}),
]


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    options: dict[str, Any]
    cancel_after: int | None = None  # tokens


class Asker:
    """Makes up requests; many of them go on with an earlier one, as a typist's or a retry do."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._earlier: list[tuple[Asked, list[int]]] = []

    def requests(self) -> list[Asked]:
        return [self._request() for _ in range(self._random.randint(1, 4))]

    def remember(self, asked: Asked, answer: list[int]) -> None:
        self._earlier = [*self._earlier, (asked, answer)][-8:]

    def _request(self) -> Asked:
        pick = self._random
        options: dict[str, Any] = {"temperature": 0.0, "max_tokens": pick.choice([0, 1, 5, 20, 60, None])}
        if self._earlier and pick.random() < 0.7:
            before, answer = pick.choice(self._earlier)
            prompt = before.prompt + answer[: pick.randint(0, len(answer))]
            prompt = prompt[: pick.choice([len(prompt), len(prompt), pick.randint(1, len(prompt))])]
            options = before.options | options if pick.random() < 0.7 else options
        else:
            some = [pick.randrange(N_VOCAB) for _ in range(pick.randint(1, 20))]
            prompt = some * pick.randint(1, 6)
        for probability, values in OPTIONS:
            if pick.random() < probability / 2:
                options |= {name: pick.choice(value) for name, value in values.items()}
        return Asked(prompt[: N_CTX - 1], options, pick.choice([None, None, None, 1, 10]))


def cancel_late(engine: Engine, request: Request, sink: RecordingSink, n_tokens: int, event: Event) -> None:
    if isinstance(event, Delta) and len(sink.tokens()) >= n_tokens:
        engine.cancel(request)


def answers(engine: Engine, asked: list[Asked], *, cancels: bool) -> list[RecordingSink]:
    sinks = []
    for one in asked:
        sink = RecordingSink()
        request = engine.submit([one.prompt], generation_params(**one.options), sink)
        if cancels and one.cancel_after is not None:
            sink.on_event = partial(cancel_late, engine, request, sink, one.cancel_after)
        sinks.append(sink)
    for sink in sinks:
        sink.ending()
    return sinks


def everything(sink: RecordingSink, index: int) -> tuple[Any, ...]:
    deltas = [delta for delta in sink.deltas if delta.index == index]
    logprobs = [(one.token, one.logprob, one.top.tolist()) for delta in deltas for one in delta.logprobs]
    reasons = [delta.finish_reason for delta in deltas if delta.finish_reason is not None]
    return sink.tokens(index), sink.text(index), logprobs, reasons


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model.gguf")


class Pair:
    """An engine that drafts and one that does not, on the same model.

    It counts the answers compared, the drafted tokens accepted, and the steps of several sequences that had drafts.
    """

    def __init__(self, model: Path, **drafting: Any) -> None:
        # With cells of their own, requests change no bit of each other. Idle prefixes are soon lost, as they may be.
        options: dict[str, Any] = {"parallel": 3, "ctx_size": 3 * N_CTX, "kv_unified": False, "cache_ram": 0}
        options |= {"model": model, "threads": N_THREADS}
        self.plain = Engine.load(EngineConfig(**options, draft_sources=()))
        self.drafting = Engine.load(EngineConfig(**options | drafting))
        self.n_compared = self.n_accepted = self.n_in_company = 0
        self.varies_because = self.drafting.varies_because
        drafts = self.drafting.workload._drafts
        drafts._costs = FlatCosts()  # type: ignore[assignment]
        if drafts._model is not None:
            drafts._model._clock = lambda: 0.0  # its steps seem to cost next to nothing
        learn = drafts.learn

        def learn_and_count(items: list[StepItem], result: StepResult) -> None:
            self.n_in_company += len(items) > 1 and any(item.draft for item in items)
            learn(items, result)

        drafts.learn = learn_and_count  # type: ignore[method-assign]

    def compare(self, asked: list[Asked]) -> list[list[int]]:
        """Ask both engines; returns the answers' tokens."""
        expected = answers(self.plain, asked, cancels=False)
        for one, want, got in zip(asked, expected, answers(self.drafting, asked, cancels=True), strict=True):
            self._compare(one, want, got)
        return [want.tokens() for want in expected]

    def compare_round(self, asker: Asker) -> None:
        asked = asker.requests()
        for one, answer in zip(asked, self.compare(asked), strict=True):
            asker.remember(one, answer)

    def _compare(self, one: Asked, want: RecordingSink, got: RecordingSink) -> None:
        ending, usage = got.ending(), got.ending().usage
        self.n_accepted += sum(drafted.n_accepted for drafted in usage.drafts)
        for index in range(one.options.get("n", 1)):
            self.n_compared += 1
            if ending.finish_reason is FinishReason.CANCELLED:
                assert want.tokens(index)[: len(got.tokens(index))] == got.tokens(index), one
            else:
                assert everything(got, index) == everything(want, index), one
        if ending.finish_reason is not FinishReason.CANCELLED:
            before = want.ending().usage
            assert usage.prompt_tokens == before.prompt_tokens, one
            assert usage.completion_tokens == before.completion_tokens, one

    def close(self) -> None:
        for engine in (self.plain, self.drafting):
            engine.close()
            assert engine.failure is None


@pytest.fixture
def pair(model: Path) -> Iterator[Pair]:
    made = Pair(model)
    yield made
    made.close()


def skip_where_answers_vary(pair: Pair) -> None:
    if pair.varies_because is not None:
        pytest.skip(f"an answer depends on the steps: {pair.varies_because}")


@pytest.mark.parametrize("seed", mostly_long(range(6), 1))
def test_drafts_change_no_answer(pair: Pair, seed: int) -> None:
    skip_where_answers_vary(pair)
    asker = Asker(seed)
    for _ in range(N_ROUNDS):
        pair.compare_round(asker)
    assert pair.n_accepted > 20


@pytest.mark.long
def test_drafts_of_several_sequences_in_a_step_change_no_answer(pair: Pair) -> None:
    """The choices of a request compute together. Sampled as before, they have their own past as drafts, which holds."""
    skip_where_answers_vary(pair)
    pick = random.Random(7)
    for seed in range(3):
        prompt = [pick.randrange(N_VOCAB) for _ in range(pick.randint(5, 150))]
        options = {"temperature": 1.0, "max_tokens": 90, "ignore_eos": True, "n": 3, "seed": seed}
        for _ in range(2):
            pair.compare([Asked(prompt, options)])
    assert pair.n_in_company > 3
    assert pair.n_accepted > 100
