"""The cost of steps, and the size of chunks."""

import pytest

from pyllmcancel.scheduling.step_cost import (
    ROWS,
    SMALLEST_AFTER_ABORTS,
    SMALLEST_CHUNK,
    TILE,
    StepCostModel,
    chunk_size,
    even_part,
    with_tail,
)


def learnt(fixed: float, per_token: float) -> StepCostModel:
    cost = StepCostModel()
    for n_tokens in (1, 16, 64, 3, 128, 40):
        cost.observe(n_tokens, fixed + per_token * n_tokens)
    return cost


def chunk(cost: StepCostModel, n_decodes: int = 0, n_batch: int = 512, itl: float = 0.1, step: float = 0.5) -> int:
    return chunk_size(cost, n_decodes=n_decodes, n_batch=n_batch, itl_target=itl, max_step=step)


def test_an_affine_cost_is_recovered_exactly() -> None:
    assert learnt(0.01, 0.002).fit() == pytest.approx((0.01, 0.002))


def test_a_device_that_is_no_cpu_begins_with_the_largest_chunk_and_keeps_it_within_the_longest_step() -> None:
    cost = StepCostModel()
    limits = {"n_decodes": 0, "n_batch": 2048, "itl_target": 0.1, "tiled": False}
    assert chunk_size(cost, max_step=0.5, **limits) == 2048
    for _ in range(5):
        cost.observe(2048, 0.2)
    assert chunk_size(cost, max_step=0.5, **limits) == 2048
    assert chunk_size(cost, max_step=0.1, **limits) == 1024


def test_steps_that_have_become_slow_for_good_are_believed() -> None:
    cost = learnt(0.01, 0.002)
    for _ in range(30):
        cost.observe(64, 0.3)
        cost.observe(8, 0.06)
    fixed, per_token = cost.fit()
    assert fixed + per_token * 64 == pytest.approx(0.3, rel=0.15)


def test_alone_a_chunk_is_large_enough_to_be_efficient() -> None:
    n_tokens = chunk(learnt(0.01, 0.001), step=10.0)
    # 190 tokens would have a fixed share of 5 %: the whole tiles below that.
    assert n_tokens == 2 * TILE
    assert n_tokens % TILE == 0


def test_alone_a_chunk_takes_no_longer_than_the_longest_step() -> None:
    assert 0.01 + 0.01 * chunk(learnt(0.01, 0.01), step=0.5) <= 0.5 + 0.01 * TILE


def test_beside_decodes_a_chunk_keeps_their_itl() -> None:
    n_tokens = chunk(learnt(0.01, 0.001), n_decodes=3, itl=0.1)
    assert 0.01 + 0.001 * n_tokens + 0.01 + 0.001 * 3 <= 0.1
    # 77 tokens would fit between their steps: the whole rows below that.
    assert n_tokens == 72


def test_in_one_step_with_decodes_a_chunk_leaves_room_for_them() -> None:
    cost = learnt(0.05, 0.001)
    sizes = [chunk_size(cost, n_decodes=8, n_batch=512, itl_target=0.2, max_step=1.0, mixed=m) for m in (True, False)]
    assert sizes == [144, 108], "150 tokens in all; or 92 before a step of eight, but 108 take half of the time"


def test_a_chunk_is_never_so_small_that_prefill_loses_half_its_speed() -> None:
    # Its own 13 tokens take as long as all else: 0.05 s of this step, 0.08 s of the three.
    assert chunk(learnt(0.05, 0.01), n_decodes=3, itl=0.1) == 13
    assert chunk(learnt(0.0, 10.0), n_decodes=3, itl=0.1) == SMALLEST_CHUNK


@pytest.mark.parametrize("itl", [0.1, 0.185, 0.25, 0.4, 0.5, 0.61])
def test_beside_decodes_no_chunk_exceeds_the_target_that_can_be_kept(itl: float) -> None:
    n_tokens = chunk(learnt(0.0, 0.01), n_decodes=1, itl=itl)
    assert n_tokens * 0.01 + 0.01 <= itl
    assert n_tokens % ROWS == 0


@pytest.mark.parametrize(
    ("chunk", "n_pending", "n_tokens"),
    [(64, 64, 64), (64, 65, 40), (64, 70, 40), (64, 128, 64), (48, 200, 40), (50, 99, 50), (10, 12, 8), (13, 300, 13)],
)
def test_beside_decodes_a_prompt_is_cut_into_like_parts(chunk: int, n_pending: int, n_tokens: int) -> None:
    assert even_part(chunk, n_pending) == n_tokens


@pytest.mark.parametrize("n_pending", range(1, 400, 7))
def test_like_parts_are_never_longer_than_a_chunk_and_make_no_more_steps(n_pending: int) -> None:
    for chunk in (8, 40, 56, 64):
        left, n_steps = n_pending, 0
        while left:
            part = even_part(chunk, left)
            assert 0 < part <= chunk
            left, n_steps = left - part, n_steps + 1
        assert n_steps == -(-n_pending // chunk)


@pytest.mark.parametrize(
    ("chunk", "n_pending", "n_others", "n_tokens"),
    [
        *((TILE, 200, 0, TILE), (TILE, 2 * TILE, 0, TILE), (TILE, 2 * TILE - 1, 0, 2 * TILE - 1), (TILE, 10, 0, 10)),
        *((TILE, 2 * TILE - 1, 7, TILE), (10, 12, 4, 10), (10, 12, TILE, 12), (0, 12, 2 * TILE, 0)),
        (-5, 12, 2 * TILE, 0),
    ],
)
def test_short_rests_go_along_if_the_batch_has_room(chunk: int, n_pending: int, n_others: int, n_tokens: int) -> None:
    assert with_tail(chunk, n_pending, n_others=n_others, n_batch=2 * TILE + 5) == n_tokens


def test_a_chunk_fits_into_the_batch() -> None:
    assert chunk(learnt(0.01, 1e-6), n_batch=32) == 32
    assert chunk(learnt(0.01, 1e-6), n_batch=32, n_decodes=4) == 32
    assert chunk(StepCostModel(), n_batch=32) == 32


def test_chunks_are_halved_by_aborts_and_doubled_by_two_that_are_computed() -> None:
    cost = learnt(0.0, 0.001)
    sizes = []
    for _ in range(4):
        sizes.append(chunk(cost))
        cost.aborted(sizes[-1])
    assert sizes == [TILE, 32, 16, 16]
    assert cost.most() == SMALLEST_AFTER_ABORTS
    for size in (16, 16, 32, 32, TILE, TILE):
        assert chunk(cost) == size
        cost.observe(size, 0.001 * size)


@pytest.mark.parametrize(
    ("n_tokens", "most"), [(17, 16), (48, 32), (TILE, 32), (100, 32), (127, 32), (300, 128), (2048, 1024)]
)
def test_what_an_abort_leaves_is_whole_tiles_or_a_half_or_a_quarter(n_tokens: int, most: int) -> None:
    cost = learnt(0.0, 0.001)
    cost.aborted(n_tokens)
    assert cost.most() == most


def test_chunks_grow_only_by_steps_that_were_as_large_as_they_could_be() -> None:
    cost = learnt(0.0, 0.001)
    cost.aborted(TILE)
    for _ in range(10):
        cost.observe(1, 0.001)
    assert chunk(cost) == 32
