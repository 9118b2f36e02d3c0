"""The effect of a sequence's company on its logits through the cells: the order of its own cells, and nothing else.

Attention sums over cells as they lie. Unified cells lie as others left room, divided ones in the order of their tokens.
Every step here is of one sequence and as long as when it is alone, so that the same kernels multiply in other cells.
"""

from typing import Any

import numpy as np
import pytest

from tests.native.conftest import World, ok

TYPES = {"f16": 1, "q8_0": 8}
COUNT = 12


def prompt(world: World, name: str) -> list[int]:
    return world.model.tokenize(f"def {name}(path, mode):\n    with open(path, mode) as file:\n        return")


def compute(world: World, context: Any, seq: int, tokens: list[int]) -> None:
    world.open(context, seq, tokens)
    ok(context.step([(seq, len(tokens))]))


def generate(context: Any, seq: int) -> np.ndarray:
    rows = []
    for _ in range(COUNT):
        ok(context.step([(seq, 1)]))
        rows.append(np.array(context.logits(seq)))
    return np.stack(rows)


def alone(world: World, **options: Any) -> np.ndarray:
    context = world.context(**options)
    compute(world, context, 1, prompt(world, "mine"))
    return generate(context, 1)


def beside_another(world: World, *, leaves: bool, **options: Any) -> np.ndarray:
    """Another comes before; if it leaves before the first token is generated, its cells are the next to be used."""
    context = world.context(**options)
    compute(world, context, 0, prompt(world, "other"))
    compute(world, context, 1, prompt(world, "mine"))
    if leaves:
        context.close(0, keep=False)
    return generate(context, 1)


@pytest.mark.parametrize("kind", TYPES)
def test_in_unified_cells_in_order_nothing_is_seen_of_others(packaged: World, kind: str) -> None:
    options = {"n_ctx": 256, "type_k": TYPES[kind], "type_v": TYPES[kind]}
    packaged = packaged.with_flash_attention()
    np.testing.assert_array_equal(beside_another(packaged, leaves=False, **options), alone(packaged, **options))


def test_of_unified_cells_the_order_in_which_they_lie_is_seen(packaged: World) -> None:
    """In the last bits only, but what is rounded to 8 bits may fall on the other side: q8_0 cells are no remedy."""
    packaged = packaged.with_flash_attention()
    options = {"n_ctx": 256, "type_k": TYPES["q8_0"], "type_v": TYPES["q8_0"]}
    assert np.any(beside_another(packaged, leaves=True, **options) != alone(packaged, **options))
