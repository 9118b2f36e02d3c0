"""The contract of ``_native.pyi``, LoRA adapters: kept by the compiled module and by its fake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.adapters import Adapter, Scales
from pyllmcancel.errors import UsageError
from tests.native.conftest import FAKE, PROMPT, REAL, World, ok
from tests.support.device import load_model
from tests.support.toy_adapters import write_adapter

FIRST, SECOND = ((0, 1.0),), ((1, 0.5),)
SETS: tuple[Scales, ...] = ((), FIRST, SECOND, ((0, 0.5), (1, 1.0)))


@pytest.fixture(scope="module", params=[*(f"real {kind}" for kind in REAL), *(f"fake {kind}" for kind in FAKE)])
def adapted(request: Any, make_world: Callable[[str], World], tmp_path_factory: pytest.TempPathFactory) -> World:
    """Every kind of memory, with two adapters."""
    world = make_world(request.param)
    if request.param.startswith("fake"):
        model = world.native.Model(world.kind)
        model.adapters = [Adapter(), Adapter()]
    else:
        folder = tmp_path_factory.mktemp("adapters")
        files = [write_adapter(folder / f"{seed}.gguf", world.path, seed=seed) for seed in (1, 2)]
        model = load_model(world.path, lora=files)
    return World(world.native, world.kind, Path(world.path), model, world.options)


def alone(world: World, adapters: Scales, count: int = 6, adapted_from: int = 0) -> list[int]:
    context = world.opened(PROMPT, adapters=adapters, adapted_from=adapted_from)
    if adapted_from:
        ok(context.step([(0, adapted_from)]))
    return world.run(context, 0, count)


def test_each_set_of_adapters_has_an_answer_of_its_own(adapted: World) -> None:
    assert len({tuple(alone(adapted, scales)) for scales in SETS}) == len(SETS)
    assert alone(adapted, ()) == adapted.alone(PROMPT, 6)


def test_sequences_of_several_sets_take_turns_and_none_notices(adapted: World) -> None:
    context = adapted.context()
    for seq, scales in enumerate(SETS):
        adapted.open(context, seq, PROMPT, adapters=scales)
    answers: dict[int, list[int]] = {seq: [] for seq in range(len(SETS))}
    for _ in range(6):
        for seq, answer in answers.items():
            answer.extend(adapted.run(context, seq, 1))
    assert list(answers.values()) == [alone(adapted, scales) for scales in SETS]


def test_a_step_has_one_set_of_adapters(adapted: World) -> None:
    context = adapted.opened(PROMPT, adapters=FIRST)
    adapted.open(context, 1, PROMPT, adapters=SECOND)
    adapted.open(context, 2, PROMPT, adapters=FIRST)
    with pytest.raises(UsageError, match="one set"):
        context.step([(0, 4), (1, 4)])
    ok(context.step([(0, 4), (2, 4)]))
    ok(context.step([(1, 4)]))
    assert adapted.run(context, 1, 6) == alone(adapted, SECOND)


def test_adapters_begin_at_their_token_and_not_within_a_step(adapted: World) -> None:
    context = adapted.opened(PROMPT, adapters=FIRST, adapted_from=15)
    adapted.open(context, 1, PROMPT)
    with pytest.raises(UsageError, match="begin"):
        context.step([(0, 16)])
    ok(context.step([(0, 15), (1, 15)]))  # none yet: they are of one set
    with pytest.raises(UsageError, match="one set"):
        context.step([(0, 1), (1, 1)])
    assert adapted.run(context, 0, 6) == alone(adapted, FIRST, adapted_from=15)


def test_no_more_is_reused_than_the_caller_allows(adapted: World) -> None:
    context = adapted.opened(PROMPT)
    adapted.run(context, 0, 1)
    context.close(0, keep=True)
    assert context.common_prefixes(PROMPT, most=10)[0] == (10 if adapted.survives_abort else 0)
    adapted.open(context, 0, PROMPT, adapters=FIRST, adapted_from=10, n_reusable=10)
    assert context.n_committed(0) == (10 if adapted.survives_abort else 0)
    if not adapted.survives_abort:
        ok(context.step([(0, 10)]))
    assert adapted.run(context, 0, 6) == alone(adapted, FIRST, adapted_from=10)


@pytest.mark.parametrize(
    "scales", [((2, 1.0),), ((-1, 1.0),), ((1, 1.0), (0, 1.0)), ((0, 1.0), (0, 1.0)), ((0, 0.0),), ((0, float("inf")),)]
)
def test_adapters_that_are_not_there_or_have_no_scale_are_refused(adapted: World, scales: Scales) -> None:
    context = adapted.context()
    with pytest.raises(UsageError):
        adapted.open(context, 0, PROMPT, adapters=scales)
    adapted.open(context, 0, PROMPT)
    assert adapted.run(context, 0, 3) == adapted.alone(PROMPT, 3)
