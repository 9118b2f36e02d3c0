"""Contexts that cannot be had: an error that says so, and nothing that stays."""

from pathlib import Path

import pytest

from pyllmcancel._native import Context, Embedder, Model
from pyllmcancel.errors import ContextError
from tests.native.conftest import World, ok
from tests.support.device import load_model

SIZES = {"n_ctx": 64, "n_seq_max": 1, "n_batch": 8, "n_threads": 1}


@pytest.fixture(scope="module")
def model(model_files: dict[str, Path]) -> Model:
    return load_model(model_files["attention"])


@pytest.mark.parametrize("kind", [Context, Embedder])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("number", [2**31, 2**32, 2**63, 10**30])
def test_a_number_that_is_too_large_for_llama_cpp_is_named(model: Model, kind: type, name: str, number: int) -> None:
    with pytest.raises(ContextError, match=rf"{name} is {number}"):
        kind(model, **SIZES | {name: number})


@pytest.mark.parametrize("n_ctx", [400_000_000, 2**31 - 1])
def test_more_cells_than_the_memory_has_room_for_are_refused_before_they_are_written(model: Model, n_ctx: int) -> None:
    with pytest.raises(ContextError, match=f"context of {n_ctx} cells"):
        Context(model, **SIZES | {"n_ctx": n_ctx})


def test_after_a_context_that_could_not_be_had_another_one_answers_as_before(real_world: World) -> None:
    prompt = list(range(20, 40))
    before = real_world.alone(prompt, 8)
    for n_ctx in (2**31 - 1, 2**40):
        with pytest.raises(ContextError):
            real_world.context(n_ctx=n_ctx)
    assert real_world.alone(prompt, 8) == before
    assert len(ok(real_world.opened(prompt).step([(0, len(prompt))]))) == 1
