"""A model's own heads on the compiled engine: the tokens are those without them, and fewer steps are computed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel._native import Context, Model
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import heads
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.heads import Heads
from pyllmcancel.errors import UsageError
from pyllmcancel.events import FinishReason
from tests.races.drafting import PROMPTS, Drafting, check_cancel_in_a_draft, context_options, making
from tests.support import tiny_models
from tests.support.tiny_heads import STATE, write_tiny_heads, write_tiny_window_heads


def with_heads(model: Model, *, drafts: bool = True, n_states: int = 512, n_ctx: int = 3072, **config: Any) -> Drafting:
    """Return an engine on a tiny model whose heads draft, or do not."""
    defaults: dict[str, Any] = {"parallel": 3, "kv_unified": True, "draft_sources": ("heads",) if drafts else ()}
    made = EngineConfig(**defaults | config)
    options = context_options(made, n_ctx)
    context = Context(model, **options, n_states=n_states if drafts else 0)
    if not drafts:
        return Drafting(context, None, made, None)
    own = Context(model, **options, heads=True)
    return Drafting(context, own, made, Heads(own, context, made, _native, clock=lambda: 0.0))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Models by what their heads are worth: `chain` is always right, `often` and `seldom` are what they say.

    `window` is as often right, and has a sliding window.
    """
    folder = tmp_path_factory.mktemp("heads")
    paths = {
        "chain": write_tiny_heads(folder / "chain.gguf", strength=0.0),
        "often": write_tiny_heads(folder / "often.gguf", strength=0.05),
        "seldom": write_tiny_heads(folder / "seldom.gguf", reads=STATE),
        "window": write_tiny_window_heads(folder / "window.gguf", strength=0.05),
    }
    return {name: Model.load(path, heads=True) for name, path in paths.items()}


MakeEngine = Callable[..., Drafting]


@pytest.fixture
def make_engine(models: dict[str, Model]) -> Iterator[MakeEngine]:
    with making(lambda model, **options: with_heads(models[model], **options)) as made:
        yield made


# Without them a token is a sample of all others: no rounding decides which of them are left.
SAMPLED = {"temperature": 1.0, "seed": 3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize("kv_unified", [True, False])
@pytest.mark.parametrize(
    ("model", "sampling"), [*((model, {}) for model in ("chain", "often", "seldom", "window")), ("often", SAMPLED)]
)
def test_the_tokens_are_those_without(make_engine: MakeEngine, model: str, sampling: Any, kv_unified: bool) -> None:
    expected = make_engine(model, drafts=False, kv_unified=kv_unified).answers(**sampling)
    assert make_engine(model, kv_unified=kv_unified).answers(**sampling) == expected


def test_drafts_are_accepted_as_far_as_the_head_is_right(make_engine: MakeEngine) -> None:
    shares = {}
    for model in ("chain", "often", "window", "seldom"):
        _, sink = make_engine(model).submit(PROMPTS[0], max_tokens=400)
        (drafted,) = sink.ending().usage.drafts
        assert drafted.source == "heads"
        shares[model] = drafted.n_accepted / drafted.n_drafted
    assert shares["chain"] > 0.99
    assert 0.2 < shares["often"] < 1.0
    assert 0.2 < shares["window"] < 1.0
    assert shares["seldom"] < 0.2


def test_heads_that_are_mostly_wrong_are_asked_for_less(make_engine: MakeEngine) -> None:
    assert make_engine("seldom").drafted_each_step() < make_engine("chain").drafted_each_step() / 2


@pytest.mark.parametrize("poll", [1, 20])
@pytest.mark.parametrize("n_later", [0, 1, 3])
def test_a_cancel_in_a_draft_disturbs_no_neighbour(make_engine: MakeEngine, poll: int, n_later: int) -> None:
    check_cancel_in_a_draft(make_engine("often"), make_engine("often", drafts=False).answers(), poll, n_later)


def conversation(engine: Drafting, **options: Any) -> list[list[int]]:
    """Three turns, each after the text of those before it, and a turn that takes back the last one."""
    prompt, answers = list(PROMPTS[0]), []
    for turn in range(3):
        answers.append(engine.answer(prompt, **options))
        prompt = [*prompt, *answers[-1], *PROMPTS[1][: 20 + turn]]
    answers.append(engine.answer([*PROMPTS[0], *answers[0], *PROMPTS[2]], **options))
    return answers


@pytest.mark.parametrize("n_states", [512, 16])
@pytest.mark.parametrize("model", ["often", "window"])
def test_prefixes_are_reused_with_the_tokens_of_without(make_engine: MakeEngine, model: str, n_states: int) -> None:
    """With 16 states the heads begin anew within the text, wherever they were not asked for a while."""
    expected = conversation(make_engine(model, drafts=False))
    engine = make_engine(model, n_states=n_states)
    assert conversation(engine) == expected
    assert engine.counts()[1] > 0


def test_a_choice_that_is_preempted_goes_on_with_its_own_tokens(make_engine: MakeEngine) -> None:
    """The cells of the answers do not suffice for all three, nor do those of the heads."""
    answers = []
    for engine in (make_engine("often", drafts=False), make_engine("often", n_ctx=256)):
        _, sink = engine.submit(PROMPTS[1], n=3, **SAMPLED)
        assert sink.ending().finish_reason is FinishReason.LENGTH
        answers.append([sink.tokens(index) for index in range(3)])
    assert answers[0] == answers[1]
    assert engine.generation.scheduler.n_preempted > 0
    assert engine.counts()[0] > 0


def test_heads_that_fail_cost_their_drafts_only(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make_engine("often", drafts=False).answers()
    engine = make_engine("often")
    monkeypatch.setattr(heads.Heads, "_step", lambda self, items, choices: self._note_failure(choices, "a test"))
    assert engine.answers() == expected
    assert engine.counts() == (0, 0)


def loaded(path: Path, **config: Any) -> Engine:
    options: dict[str, Any] = {"model": path, "draft_sources": ("heads",), "ctx_size": 1024}
    return Engine.load(EngineConfig(**options | config))


def test_an_engine_is_loaded_with_heads(tmp_path: Path) -> None:
    with loaded(write_tiny_heads(tmp_path / "heads.gguf", strength=0.0)) as engine:
        assert engine.draft_sources == ("heads",)
        with engine.generate("a prompt", max_tokens=40, temperature=0.0, ignore_eos=True) as stream:
            assert sum(len(delta.tokens) for delta in stream) == 40


def test_models_whose_heads_cannot_draft_are_refused(tmp_path: Path) -> None:
    for path, told in (
        (tiny_models.write_tiny_llama(tmp_path / "llama.gguf"), "llama.gguf has no heads that guess further tokens"),
        (write_tiny_heads(tmp_path / "nameless.gguf", nameless=True), "nameless.gguf has no heads"),
        (tiny_models.write_tiny_hybrid(tmp_path / "hybrid.gguf"), "its memory is hybrid, and a rejected draft cannot"),
    ):
        with pytest.raises(UsageError, match=told):
            loaded(path)
    path = write_tiny_heads(tmp_path / "heads.gguf")
    with pytest.raises(UsageError, match="a draft model or by the model's own heads, not by both"):
        loaded(path, draft_model=path, draft_sources=("model", "heads"))
