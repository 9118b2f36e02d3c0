"""The contract of ``_native.pyi``, prefixes and aborts: kept by the compiled module and by its fake."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.errors import UsageError
from pyllmcancel.step import LogitFault, StepStatus
from tests.native.conftest import OTHER, PROMPT, World, ok

ROOMY = 1 << 30


def test_closing_is_idempotent(world: World) -> None:
    world.context().close(0, keep=True)
    context = world.idle(PROMPT, 40)
    context.close(0, keep=True)
    assert context.n_committed(0) == 40
    context.close(0, keep=False)
    assert context.n_committed(0) == context.n_cells_used == 0


def test_a_kept_prefix_is_gone_on_from(world: World) -> None:
    context = world.idle(PROMPT[:25], 25)
    assert context.common_prefixes(PROMPT)[0] == 25
    world.open(context, 0, PROMPT)
    assert context.n_committed(0) == 25
    assert world.run(context, 0, 4) == world.alone(PROMPT, 4)


@pytest.mark.parametrize(("n_held", "n_more"), [(25, 1), (25, 15), (10, 30), (24, 1)])
def test_only_tokens_that_are_not_held_are_handed_over(world: World, n_held: int, n_more: int) -> None:
    context, prompt = world.idle(PROMPT[:25], 25), PROMPT[: n_held + n_more]
    world.open(context, 0, prompt[n_held:], n_held=n_held)
    assert context.tokens(0) == prompt
    assert context.n_committed(0) == (min(25, len(prompt) - 1) if world.survives_abort or len(prompt) > 25 else 0)
    assert world.run(context, 0, 4) == world.alone(prompt, 4)


@pytest.mark.parametrize(("n_held", "options"), [(26, {}), (-1, {}), (25, {"n_described": 1})])
def test_more_than_is_held_is_refused(world: World, n_held: int, options: dict[str, Any]) -> None:
    context = world.idle(PROMPT, 25)
    with pytest.raises(UsageError, match="does not hold"):
        world.open(context, 0, OTHER, n_held=n_held, **options)
    assert context.n_committed(0) == 25


@pytest.mark.parametrize(("prompt", "n_kept"), [(PROMPT, 39), ([*PROMPT[:20], *OTHER], 20)], ids=["same", "another"])
def test_a_prompt_is_computed_where_it_differs_and_at_its_end(world: World, prompt: list[int], n_kept: int) -> None:
    context = world.idle(PROMPT, 40)
    world.open(context, 0, prompt)
    assert context.n_committed(0) == n_kept * world.survives_abort
    assert world.run(context, 0, 4) == world.alone(prompt, 4)


def test_dropped_cells_are_free_and_an_open_sequence_starts_again(world: World) -> None:
    context = world.computed(PROMPT, 25)
    context.drop_cells(0)
    assert context.n_cells_used == 0
    assert world.run(context, 0, 3) == world.alone(PROMPT, 3)


def test_a_shared_prefix_gives_both_the_same_beginning(world: World) -> None:
    context = world.computed(PROMPT, 30)
    assert context.share_prefix(0, 1, 30, max_bytes=ROOMY) == world.survives_abort
    assert context.n_committed(1) == 30 * world.survives_abort
    world.open(context, 1, [*PROMPT[:30], *OTHER])
    assert world.run(context, 1, 4) == world.alone([*PROMPT[:30], *OTHER], 4)
    assert world.run(context, 0, 4) == world.alone(PROMPT, 4)


def test_cells_that_several_sequences_hold_are_counted_once(world: World) -> None:
    context = world.computed(PROMPT, 30)
    context.share_prefix(0, 1, 30, max_bytes=ROOMY)
    assert context.n_cells_used == context.n_cells_of([0, 1]) == context.n_cells_of([0, 0]) == 30
    world.open(context, 1, [*PROMPT[:20], *OTHER])
    shared = context.n_committed(1)
    context.step([(1, 10)])
    context.step([(0, 5)])
    assert context.n_cells_used == 35 + shared + 10 - shared
    assert [context.n_cells_of([seq]) for seq in range(4)] == [35, shared + 10, 0, 0]
    context.drop_cells(0)
    assert context.n_cells_used == shared + 10, "what it shared is the other's still"
    with pytest.raises(UsageError, match="no sequence 4"):
        context.n_cells_of([4])


@pytest.mark.parametrize("seed", range(20))
def test_shared_cells_are_counted_as_if_each_had_a_name(make_world: Callable[[str], World], seed: int) -> None:
    """The fake gives every cell a name of its own; the compiled context only knows what pairs have in common."""
    worlds = [make_world("real attention"), make_world("fake attention")]
    pairs, dice = [(world, world.context()) for world in worlds], random.Random(seed)
    for _ in range(60):
        source, target = dice.sample(range(4), 2)
        fresh, where = [dice.randrange(250) for _ in range(8)], dice.random()
        for world, context in pairs:
            n_held = context.n_committed(source)
            if n_held and where < 0.6:
                context.share_prefix(source, target, 1 + int(where * n_held), max_bytes=ROOMY)
            elif where > 0.95:
                context.drop_cells(source)
            tokens = [*context.tokens(target)[: int(where * 40)], *fresh]
            world.open(context, target, tokens)
            ok(context.step([(target, len(tokens) - context.n_committed(target) - 1)]))
            context.close(target, keep=True)
        real, fake = (context for _, context in pairs)
        assert [real.n_committed(seq) for seq in range(4)] == [fake.n_committed(seq) for seq in range(4)]
        for seqs in ([0, 1, 2, 3], [0, 1], [3, 1, 2], [source, target]):
            assert real.n_cells_of(seqs) == fake.n_cells_of(seqs)
        assert real.n_cells_used == fake.n_cells_used


def test_prefixes_are_shared_with_other_idle_sequences_as_far_as_they_are_computed(world: World) -> None:
    context = world.computed(PROMPT, 10)
    world.open(context, 1, OTHER)
    for source, target, n_tokens in ((0, 0, 5), (0, 1, 5), (0, 2, 11), (0, 2, 0), (0, 4, 5)):
        with pytest.raises(UsageError):
            context.share_prefix(source, target, n_tokens, max_bytes=ROOMY)
    assert context.n_cells_used == 10


def test_a_flag_raised_before_the_step_aborts_it_at_the_first_node(world: World) -> None:
    context = world.context()
    world.open(context, 0, PROMPT).set()
    result = context.step([(0, 40)])
    assert (result.status, result.rows, result.polls, result.spared) == (StepStatus.ABORTED, [], 1, False)
    assert context.n_committed(0) == 0
    assert context.logits(0) is None


def test_an_abort_keeps_what_earlier_steps_have_computed_or_knows_that_it_is_lost(world: World) -> None:
    context = world.context()
    flag = world.open(context, 0, PROMPT)
    context.step([(0, 25)])
    flag.set()
    assert context.step([(0, 15)]).status is StepStatus.ABORTED
    assert context.n_committed(0) == 25 * world.survives_abort
    context.close(0, keep=True)
    world.open(context, 0, PROMPT)
    assert world.run(context, 0, 5) == world.alone(PROMPT, 5)


def test_an_abort_leaves_nothing_for_the_next_request(world: World) -> None:
    context = world.context()
    world.open(context, 0, PROMPT).set()
    context.step([(0, 40)])
    context.close(0, keep=True)
    world.open(context, 0, OTHER)
    assert world.run(context, 0, 5) == world.alone(OTHER, 5)


def test_a_flag_reaches_only_steps_that_hold_its_sequence(world: World) -> None:
    context = world.opened(PROMPT)
    world.open(context, 1, OTHER).set()
    assert world.run(context, 0, 5) == world.alone(PROMPT, 5)


def with_survivor(world: World) -> tuple[Any, Any]:
    """A context where 0 decodes, and 1, with its flag, has a prompt to compute."""
    context = world.computed(OTHER, 30)
    return context, world.open(context, 1, PROMPT)


def test_a_large_part_of_a_cancelled_sequence_is_worth_an_abort_where_that_is_safe(world: World) -> None:
    context, flag = with_survivor(world)
    flag.set()
    result = context.step([(0, 1), (1, 40)], fixed_cost=0.0, cost_per_token=1.0)
    assert result.status is (StepStatus.ABORTED if world.survives_abort else StepStatus.OK)
    assert result.spared != world.survives_abort
    context.close(1, keep=True)
    done = len(context.tokens(0)) - 30
    assert [*context.tokens(0)[30:], *world.run(context, 0, 6 - done)] == world.alone(OTHER, 6)


def test_a_step_that_is_cheap_to_finish_is_spared_for_the_survivor(world: World) -> None:
    context, flag = with_survivor(world)
    flag.set()
    result = context.step([(0, 1), (1, 40)], fixed_cost=1.0, cost_per_token=0.0)
    assert (result.status, result.spared) == (StepStatus.OK, True)
    survivor, victim = result.rows
    assert survivor.token >= 0
    assert (victim.token, victim.fault) == (-1, LogitFault.NONE)
    assert context.tokens(1) == PROMPT


def test_a_step_whose_members_are_all_cancelled_is_aborted_on_any_memory(world: World) -> None:
    context, flag = with_survivor(world)
    other = world.native.CancelFlag()
    context.close(0, keep=True)
    context.open(0, [*context.tokens(0), 5], world.sampler(), other)
    flag.set()
    other.set()
    assert context.step([(0, 1), (1, 40)], fixed_cost=1.0, cost_per_token=0.0).status is StepStatus.ABORTED


def test_a_context_that_is_not_abortable_finishes_every_step(world: World) -> None:
    context = world.context(abortable=False)
    world.open(context, 0, PROMPT).set()
    (row,) = ok(context.step([(0, 40)]))
    assert row.token == -1, "who is cancelled gets no token"


@pytest.mark.parametrize("name", ["real attention", "fake attention"])
def test_a_step_without_room_changes_nothing(make_world: Callable[[str], World], name: str) -> None:
    """Only for attention: states have a fixed size, and a window's cells are counted by llama.cpp's own rules."""
    world = make_world(name)
    context = world.opened([1] * 200, n_ctx=256, n_batch=256)
    world.open(context, 1, PROMPT + OTHER)
    ok(context.step([(0, 200)]))
    assert context.step([(1, 70)]).status is StepStatus.NO_ROOM
    assert [context.n_committed(seq) for seq in range(2)] == [200, 0]
    context.drop_cells(0)
    assert world.run(context, 1, 4) == world.alone(PROMPT + OTHER, 4)


@pytest.mark.parametrize("done", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("n_surviving", [0, 1, 20, 63])
@pytest.mark.parametrize(("fixed", "per_token"), [(0.0, 1.0), (30.0, 1.0), (1.0, 0.0)])
def test_a_step_is_aborted_if_its_rest_costs_more_than_its_survivors(
    world: World, done: float, n_surviving: int, fixed: float, per_token: float
) -> None:
    rest = (1.0 - done) * (fixed + per_token * 64)
    redo = fixed + per_token * n_surviving if n_surviving else 0.0
    decided = world.native.worth_aborting(64, n_surviving, done, fixed_cost=fixed, cost_per_token=per_token)
    assert decided == (rest > redo)


def test_a_swapped_prefix_comes_back_as_it_was(world: World) -> None:
    world = world.with_flash_attention()
    context = world.idle(PROMPT, 40)
    prefix = context.copy_out(0, max_bytes=ROOMY)
    assert (context.n_committed(0), context.tokens(0)) == (40, PROMPT), "still there"
    context.drop_cells(0)
    assert context.common_with([prefix, prefix], [*PROMPT, 1]) == [40, 40]
    rolls_back = prefix.least == 1
    assert rolls_back or not context.can_swap
    assert context.common_with([prefix], PROMPT) == [39 * rolls_back], "never the last token, whose logits are wanted"
    assert context.common_with([prefix], [*PROMPT[:20], *OTHER]) == [20 * rolls_back]
    assert context.common_with([prefix], []) == [0]
    assert (prefix.n_tokens, prefix.n_bytes > 0) == (40, True)
    assert context.n_cells_used == 0
    assert context.tokens(0) == []
    world.open(context, 0, OTHER)
    context.step([(0, 30)])
    assert context.swap_in(1, prefix)
    assert context.tokens(1) == PROMPT
    longer = [*PROMPT, *OTHER]
    world.open(context, 1, longer)
    assert context.n_committed(1) == 40
    assert world.run(context, 1, 4) == world.alone(longer, 4)
    assert world.run(context, 0, 4) == world.alone(OTHER, 5)[1:], "a neighbour does not notice"


def test_a_copy_gives_no_more_than_it_can(world: World) -> None:
    """The states of other memories than attention are those of their last tokens."""
    context = world.with_flash_attention().idle(PROMPT, 40)
    prefix = context.copy_out(0, max_bytes=ROOMY)
    prompt = [*PROMPT[:20], *OTHER]
    (n_promised,) = context.common_with([prefix], prompt)
    assert context.swap_in(1, prefix)
    world.open(context, 1, prompt)
    assert context.n_committed(1) == n_promised
    assert world.run(context, 1, 4) == world.alone(prompt, 4)


def test_states_that_do_not_fit_their_tokens_are_refused(world: World) -> None:
    blank = world.native.SwappedPrefix.blank
    for tokens, least, parts in (
        (PROMPT, 1, []),
        (PROMPT, 0, [(40, 8)]),
        (PROMPT, 41, [(40, 8)]),
        (PROMPT, 1, [(39, 8)]),
        (PROMPT, 1, [(40, 0)]),
        (PROMPT, 40, [(40, 8), (41, 8)]),
        (PROMPT, 40, [(40, 8), (20, 8), (10, 8)]),
        ([], 1, [(0, 8)]),
    ):
        with pytest.raises(UsageError):
            blank(tokens, least, parts)


def test_a_prefix_of_more_than_a_huge_page_comes_back_as_it_was(slow_world: World) -> None:
    context = slow_world.with_flash_attention().context(n_ctx=2048)
    tokens = [(7 * n + 3) % 250 for n in range(700)]
    slow_world.open(context, 0, tokens)
    answer = slow_world.run(context, 0, 4)
    context.close(0, keep=True)
    prefix = context.copy_out(0, max_bytes=ROOMY)
    assert prefix.n_bytes > 2 << 20
    context.drop_cells(0)
    assert context.swap_in(1, prefix)
    slow_world.open(context, 1, tokens)
    assert context.n_committed(1) == 699
    assert slow_world.run(context, 1, 4) == answer


def test_nothing_is_copied_out_of_an_empty_sequence_and_an_open_one_is_refused(world: World) -> None:
    context = world.context()
    assert context.copy_out(0, max_bytes=ROOMY) is None
    world.open(context, 0, PROMPT)
    with pytest.raises(UsageError):
        context.copy_out(0, max_bytes=ROOMY)


def test_what_is_larger_than_it_may_be_is_not_copied_out(world: World) -> None:
    world = world.with_flash_attention()
    context = world.idle(PROMPT, 40)
    assert context.swap_bytes(0) > 1000
    assert context.swap_bytes(1) == 0
    assert context.copy_out(0, max_bytes=1000) is None
    assert context.n_committed(0) == 40
    assert context.common_prefixes([]) == [0] * context.n_seq_max


def test_a_swapped_prefix_that_finds_no_room_leaves_the_sequence_empty(world: World) -> None:
    world = world.with_flash_attention()
    context = world.idle(PROMPT, 40, n_ctx=256)
    if not context.can_swap:
        return
    prefix = context.copy_out(0, max_bytes=ROOMY)
    context.drop_cells(0)
    long = [n % 250 for n in range(240)]
    world.open(context, 1, long)
    for begin in range(0, 240, 40):
        context.step([(1, min(40, 240 - begin))])
    assert not context.swap_in(0, prefix)
    assert context.n_committed(0) == 0
    assert world.run(context, 1, 2) == world.alone(long, 3)[1:]
