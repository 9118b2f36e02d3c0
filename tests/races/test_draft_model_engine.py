"""A draft model on the compiled engine: the tokens are those without it, and fewer steps are computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from pyllmcancel import _native
from pyllmcancel._native import Context
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import host_memory
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.draft_model import DraftModel
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.engine.host_memory import Memory
from pyllmcancel.errors import ModelLoadError, PlacementError, UsageError
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.requests.request import Request
from tests.native.conftest import SAME_TOKENS_IN_COMPANY
from tests.support import tiny_models
from tests.support.broken_models import write_not_gguf
from tests.support.device import load_model
from tests.support.driver import RecordingSink, Watcher
from tests.support.threads import N_THREADS

PROMPTS = [[(13 * n + 7 * i) % 900 for n in range(40 + 30 * i)] for i in range(3)]
LENGTH = 80


class FlatCosts:
    """Costs of steps at which drafts pay, whatever else runs on this machine."""

    def of(self, n_rows: int) -> float:
        return 1.0 + 0.01 * n_rows

    def observe(self, n_rows: int, seconds: float) -> None: ...


class Pair:
    """An engine on a tiny model with a draft model, or without."""

    def __init__(self, path: Path, draft: Path | None, **config: Any) -> None:
        self.watcher = Watcher()
        defaults: dict[str, Any] = {"parallel": 3, "kv_unified": True, "draft_sources": ("model",)}
        self.config = EngineConfig(**defaults | config)
        options: dict[str, Any] = {"n_ctx": 3 * 1024, "n_seq_max": 3, "n_batch": 64, "n_threads": N_THREADS}
        options |= SAME_TOKENS_IN_COMPANY | {"kv_unified": self.config.kv_unified is True}
        context = Context(load_model(path), **options)
        self.draft_context = None if draft is None else Context(load_model(draft), **options)
        drafting = None
        if self.draft_context is not None:
            drafting = DraftModel(self.draft_context, context.model, self.config, _native, clock=lambda: 0.0)
        generation = Generation(context, self.config, _native, drafting)
        generation._drafts._costs = FlatCosts()  # type: ignore[assignment]
        self.engine = Engine(generation, observer=self.watcher)

    def submit(self, prompt: list[int], **options: Any) -> tuple[Request, RecordingSink]:
        sink = RecordingSink()
        params = generation_params(**{"temperature": 0.0, "max_tokens": LENGTH, "ignore_eos": True} | options)
        return self.engine.submit([prompt], params, sink), sink

    def answers(self, **options: Any) -> list[list[int]]:
        """Return the answers to all prompts, asked at once."""
        sinks = [self.submit(prompt, **options)[1] for prompt in PROMPTS]
        for sink in sinks:
            assert sink.ending().finish_reason is FinishReason.LENGTH
        return [sink.tokens() for sink in sinks]

    def n_drafted(self) -> int:
        return sum(part.n_drafted for step in self.watcher.steps for part in step.sequences)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    return {
        "model": tiny_models.write_tiny_llama(folder / "model.gguf"),
        "other": tiny_models.write_tiny_llama(folder / "other.gguf", seed=5),
        "sliding-window": tiny_models.write_tiny_sliding_window(folder / "window.gguf"),
        "hybrid": tiny_models.write_tiny_hybrid(folder / "hybrid.gguf"),
        "recurrent": tiny_models.write_tiny_recurrent(folder / "recurrent.gguf"),
        "vocabulary": tiny_models.write_tiny_llama(
            folder / "vocabulary.gguf", vocabulary=tiny_models.load_vocabulary(512)
        ),
    }


@pytest.fixture
def make_pair(files: dict[str, Path]) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(draft: str | None, model: str = "model", **config: Any) -> Pair:
        made.append(Pair(files[model], None if draft is None else files[draft], **config))
        return made[-1]

    yield make
    for pair in made:
        pair.engine.close()
        assert pair.engine.failure is None


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("draft", ["model", "other", "sliding-window"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_tokens_are_those_without(
    make_pair: Callable[..., Pair], draft: str, sampling: dict[str, Any], kv_unified: bool
) -> None:
    expected = make_pair(None, kv_unified=kv_unified).answers(**sampling)
    pair = make_pair(draft, kv_unified=kv_unified)
    assert pair.answers(**sampling) == expected


@pytest.mark.parametrize(("model", "draft"), [("model", "model"), ("sliding-window", "sliding-window")])
def test_a_model_accepts_what_it_drafted_itself(make_pair: Callable[..., Pair], model: str, draft: str) -> None:
    pair = make_pair(draft, model)
    _, sink = pair.submit(PROMPTS[0], max_tokens=400)
    sink.ending()
    n_steps = sum(all(part.phase == "decode" for part in step.sequences) for step in pair.watcher.steps)
    n_accepted = len(sink.tokens()) - 1 - n_steps
    assert n_accepted > 0.9 * pair.n_drafted() > 300


def test_a_model_that_disagrees_is_asked_for_less(make_pair: Callable[..., Pair]) -> None:
    drafted = []
    for draft in ("model", "other"):
        pair = make_pair(draft)
        _, sink = pair.submit(PROMPTS[0], max_tokens=400)
        sink.ending()
        drafted.append(pair.n_drafted() / len(pair.watcher.steps))
    assert drafted[1] < drafted[0] / 2


class Drafting(Protocol):
    """An engine that drafts in a context beside the model's."""

    @property
    def engine(self) -> Engine: ...
    @property
    def watcher(self) -> Watcher: ...
    def submit(self, prompt: list[int], **options: Any) -> tuple[Request, RecordingSink]: ...


def check_cancel_in_a_draft(
    drafting: Drafting, context: Context, expected: list[list[int]], poll: int, n_later: int
) -> None:
    """Cancel the first of three requests at a poll of a draft's step; the others have the tokens that are expected."""
    drafts_begin = threading.Event()

    def trap(record: StepRecord) -> None:
        drafted = any(part.n_drafted for part in record.sequences)
        if requests and drafted and not drafts_begin.is_set():  # the engine may be sooner than `submit` returns
            context.raise_at(poll, requests[0].cancellation.flag, n_later=n_later)  # type: ignore[arg-type]
            drafts_begin.set()

    drafting.watcher.on_step_done = trap
    requests = []
    sinks = []
    for prompt in PROMPTS:
        request, sink = drafting.submit(prompt)
        requests.append(request)
        sinks.append(sink)
    assert drafts_begin.wait(60)
    drafting.engine.cancel(requests[0])
    assert [sink.ending().finish_reason for sink in sinks[1:]] == [FinishReason.LENGTH] * 2
    assert [sink.tokens() for sink in sinks[1:]] == expected[1:]
    assert sinks[0].tokens() == expected[0][: len(sinks[0].tokens())]
    sinks[0].ending()


@pytest.mark.parametrize("poll", [1, 20])
@pytest.mark.parametrize("n_later", [0, 1, 3])
def test_a_cancel_in_a_draft_disturbs_no_neighbour(make_pair: Callable[..., Pair], poll: int, n_later: int) -> None:
    expected = make_pair(None).answers()
    pair = make_pair("model")
    context = pair.draft_context
    assert context is not None
    check_cancel_in_a_draft(pair, context, expected, poll, n_later)
    # What the cancel left in the cells of both contexts is true.
    assert pair.answers() == expected


def loaded(files: dict[str, Path], draft: Path, model: str = "model", **config: Any) -> Engine:
    return Engine.load(EngineConfig(model=files[model], draft_model=draft, ctx_size=1024, **config))


def test_an_engine_is_loaded_with_a_draft_model(files: dict[str, Path]) -> None:
    with loaded(files, files["other"]) as engine, engine.generate("a prompt", max_tokens=8) as stream:
        assert sum(len(delta.tokens) for delta in stream) > 0


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        ("vocabulary", "another vocabulary than the model: its vocabulary has 512 tokens, and the model's has 1,024"),
        ("hybrid", "its memory is hybrid, and a rejected draft cannot be undone in it"),
        ("recurrent", "its memory is recurrent, and a rejected draft cannot be undone in it"),
    ],
)
def test_a_draft_model_that_cannot_draft_is_refused(files: dict[str, Path], draft: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        loaded(files, files[draft])


def test_a_model_that_cannot_have_drafts_gets_no_draft_model(files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"the model cannot be used .* its memory is hybrid"):
        loaded(files, files["model"], "hybrid")


def test_a_draft_model_that_cannot_be_loaded_is_said(files: dict[str, Path], tmp_path: Path) -> None:
    for path in (write_not_gguf(tmp_path / "text.gguf"), tmp_path / "missing.gguf"):
        with pytest.raises(ModelLoadError, match=f"the draft model cannot be loaded: .*{path.name}"):
            loaded(files, path)


def test_two_models_that_do_not_fit_together_are_refused(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = files["model"].stat().st_size
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(1 << 30, size + size // 2))
    monkeypatch.setattr(host_memory.ContextNeed, "of", lambda *_, **__: None)
    with pytest.raises(PlacementError, match="do not fit into memory together"):
        loaded(files, files["other"])


def test_without_its_source_the_draft_model_is_not_loaded(files: dict[str, Path], tmp_path: Path) -> None:
    with loaded(files, tmp_path / "missing.gguf", draft_sources=("ngram",)):
        pass
