"""A draft model on the compiled engine: the tokens are those without it, and fewer steps are computed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel._native import Context
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import host_memory
from pyllmcancel.engine.draft_model import DraftModel
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.host_memory import Memory
from pyllmcancel.errors import ModelLoadError, PlacementError, UsageError
from tests.races.drafting import PROMPTS, Drafting, check_cancel_in_a_draft, context_options, making
from tests.support import tiny_models
from tests.support.broken_models import write_not_gguf
from tests.support.device import load_model

MakePair = Callable[..., Drafting]


def pair(path: Path, draft: Path | None, **config: Any) -> Drafting:
    """Return an engine with a draft model, or without."""
    defaults: dict[str, Any] = {"parallel": 3, "kv_unified": True, "draft_sources": ("model",)}
    made = EngineConfig(**defaults | config)
    context = Context(load_model(path), **context_options(made))
    if draft is None:
        return Drafting(context, None, made, None)
    draft_context = Context(load_model(draft), **context_options(made))
    drafts = DraftModel(draft_context, context, made, _native, clock=lambda: 0.0)
    return Drafting(context, draft_context, made, drafts)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    return {
        "model": tiny_models.write_tiny_llama(folder / "model.gguf"),
        "other": tiny_models.write_tiny_llama(folder / "other.gguf", seed=5),
        "sliding-window": tiny_models.write_tiny_sliding_window(folder / "window.gguf"),
        "hybrid": tiny_models.write_tiny_hybrid(folder / "hybrid.gguf"),
        "recurrent": tiny_models.write_tiny_recurrent(folder / "recurrent.gguf"),
        "vocabulary": tiny_models.write_tiny_llama(folder / "small.gguf", vocabulary=tiny_models.load_vocabulary(512)),
    }


@pytest.fixture
def make_pair(files: dict[str, Path]) -> Iterator[MakePair]:
    def make(draft: str | None, model: str = "model", **config: Any) -> Drafting:
        return pair(files[model], None if draft is None else files[draft], **config)

    with making(make) as made:
        yield made


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize("draft", ["model", "other", "sliding-window"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_tokens_are_those_without(make_pair: MakePair, draft: str, sampling: Any, kv_unified: bool) -> None:
    expected = make_pair(None, kv_unified=kv_unified).answers(**sampling)
    assert make_pair(draft, kv_unified=kv_unified).answers(**sampling) == expected


@pytest.mark.parametrize(("model", "draft"), [("model", "model"), ("sliding-window", "sliding-window")])
def test_a_model_accepts_what_it_drafted_itself(make_pair: MakePair, model: str, draft: str) -> None:
    engine = make_pair(draft, model)
    n_tokens = len(engine.answer(PROMPTS[0], max_tokens=400))
    n_steps = sum(all(part.phase == "decode" for part in step.sequences) for step in engine.watcher.steps)
    n_accepted = n_tokens - 1 - n_steps
    assert n_accepted > 0.9 * engine.counts()[0] > 300


def test_a_model_that_disagrees_is_asked_for_less(make_pair: MakePair) -> None:
    assert make_pair("other").drafted_each_step() < make_pair("model").drafted_each_step() / 2


@pytest.mark.parametrize("poll", [1, 20])
@pytest.mark.parametrize("n_later", [0, 1, 3])
def test_a_cancel_in_a_draft_disturbs_no_neighbour(make_pair: MakePair, poll: int, n_later: int) -> None:
    check_cancel_in_a_draft(make_pair("model"), make_pair(None).answers(), poll, n_later)


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


def test_two_models_that_do_not_fit_both_are_refused(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    size = files["model"].stat().st_size
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(1 << 30, size + size // 2))
    monkeypatch.setattr(host_memory.ContextNeed, "of", lambda *_, **__: None)
    with pytest.raises(PlacementError, match="do not fit into memory together"):
        loaded(files, files["other"])


def test_without_its_source_the_draft_model_is_not_loaded(files: dict[str, Path], tmp_path: Path) -> None:
    with loaded(files, tmp_path / "missing.gguf", draft_sources=("ngram",)):
        pass
