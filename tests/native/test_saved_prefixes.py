"""Prefixes of every kind of memory, written to a file and read into another context."""

from pathlib import Path
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel.scheduling.prefix_file import DamagedFileError, head_of, read_head, read_states, write
from pyllmcancel.scheduling.swap_space import Holder
from tests.native.conftest import World

PROMPT = [(7 * n + 3) % 250 for n in range(120)]
OTHER = [(11 * n + 5) % 250 for n in range(30)]
ROOMY = 1 << 30
OPTIONS = {"checkpoint_interval": 16, "n_ctx": 512, "flash_attention": 1}


def computed(world: World, tokens: list[int], **options: Any) -> Any:
    context = world.opened([*tokens, 1], **OPTIONS | options)
    for begin in range(0, len(tokens), 24):
        context.step([(0, min(24, len(tokens) - begin))])
    context.close(0, keep=True)
    return context


def saved(context: Any, path: Path) -> Path:
    prefix = context.copy_out(0, max_bytes=ROOMY)
    write(path, head_of(prefix, "identity", Holder("owner")), prefix)
    return path


def read(path: Path) -> Any:
    with open(path, "rb") as file:
        return read_states(file, read_head(file), _native.SwappedPrefix.blank)


def answer(world: World, context: Any, seq: int, prompt: list[int]) -> tuple[int, list[int]]:
    """How many tokens of the prompt were there, and what follows it."""
    world.open(context, seq, prompt)
    return context.n_committed(seq), world.run(context, seq, 6)


@pytest.mark.parametrize("divided", [False, True])
def test_a_prompt_goes_on_where_a_file_ends(real_world: World, tmp_path: Path, *, divided: bool) -> None:
    path = saved(computed(real_world, PROMPT, kv_unified=not divided), tmp_path / "a.prefix")
    context = real_world.context(**OPTIONS, kv_unified=not divided)
    assert context.swap_in(2, read(path))
    prompt = [*PROMPT, *OTHER]
    n_cached, tokens = answer(real_world, context, 2, prompt)
    assert n_cached == len(PROMPT)
    assert tokens == answer(real_world, computed(real_world, PROMPT, kv_unified=not divided), 0, prompt)[1]


def test_a_prompt_that_differs_goes_on_from_there_or_from_a_checkpoint(real_world: World, tmp_path: Path) -> None:
    original = computed(real_world, PROMPT)
    path = saved(original, tmp_path / "a.prefix")
    context = real_world.context(**OPTIONS)
    prompt = [*PROMPT[:100], *OTHER]
    prefix = read(path)
    (n_promised,) = context.common_with([prefix], prompt)
    assert 24 <= n_promised <= 100
    assert context.swap_in(0, prefix)
    n_cached, tokens = answer(real_world, context, 0, prompt)
    assert n_cached == n_promised
    assert tokens == answer(real_world, original, 0, prompt)[1], "as from the cells that were never saved"


def test_an_aborted_prompt_is_saved_as_far_as_it_is_true(real_world: World, tmp_path: Path) -> None:
    context = computed(real_world, PROMPT[:48])
    context.raise_at(20, real_world.open(context, 0, [*PROMPT, 1]))
    context.step([(0, 40)], fixed_cost=0.0, cost_per_token=1.0)
    context.close(0, keep=True)
    n_committed = context.n_committed(0)
    path = saved(context, tmp_path / "a.prefix")
    other = real_world.context(**OPTIONS)
    assert other.swap_in(1, read(path))
    n_cached, tokens = answer(real_world, other, 1, [*PROMPT, *OTHER])
    assert n_cached == n_committed > 0
    assert tokens == answer(real_world, context, 0, [*PROMPT, *OTHER])[1]


def test_what_was_read_is_what_was_written(real_world: World, tmp_path: Path) -> None:
    context = computed(real_world, PROMPT)
    prefix = context.copy_out(0, max_bytes=ROOMY)
    again = read(saved(context, tmp_path / "a.prefix"))
    assert (again.tokens, again.least, again.n_bytes) == (prefix.tokens, prefix.least, prefix.n_bytes)
    assert [(n, bytes(state)) for n, state in again.parts] == [(n, bytes(state)) for n, state in prefix.parts]
    assert len(prefix.parts) > 1 or real_world.kind == "attention"


def test_a_state_in_memory_cannot_be_changed_from_outside(real_world: World) -> None:
    prefix = computed(real_world, PROMPT).copy_out(0, max_bytes=ROOMY)
    with pytest.raises(TypeError):
        prefix.parts[0][1][0] = 0


def test_a_file_that_was_cut_or_changed_anywhere_is_refused(real_world: World, tmp_path: Path) -> None:
    path = saved(computed(real_world, PROMPT[:24]), tmp_path / "a.prefix")
    good = path.read_bytes()
    for place in [*range(0, 400, 7), *range(400, len(good), len(good) // 20), len(good) - 1]:
        changed = good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :]
        for content in (good[:place], changed, good + b"x"):
            path.write_bytes(content)
            with pytest.raises(DamagedFileError):
                read(path)
