"""The contract of ``_native.pyi``, steps ahead: kept by the compiled module and by its fake."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pyllmcancel.errors import ContextBusy, UsageError
from pyllmcancel.step import StepResult, StepStatus
from tests.native.conftest import World, ok

PROMPTS = [[(7 * n + 3 + first) % 250 for n in range(20 + first)] for first in range(3)]
MANY = 1000


def begun(world: World, context: Any, n_seqs: int, **sampling: Any) -> list[Any]:
    """Sequences that have got their first token; returns their flags."""
    flags = [world.open(context, seq, PROMPTS[seq], **sampling) for seq in range(n_seqs)]
    for seq in range(n_seqs):
        ok(context.step([(seq, len(PROMPTS[seq]))]))
    return flags


def two_begun(world: World, n_seqs: int, **sampling: Any) -> tuple[Any, Any]:
    """Two such contexts: what one computes ahead, the other computes without that."""
    context, other = world.context(), world.context()
    for one in (context, other):
        begun(world, one, n_seqs, **sampling)
    return context, other


def begin(context: Any, seqs: Sequence[int], n_wanted: int = MANY, stops: Sequence[int] = ()) -> StepResult:
    """A step of a token for each, which may run ahead."""
    return context.step([(seq, 1) for seq in seqs], ends=[(n_wanted, stops)] * len(seqs))


def generate(context: Any, seqs: Sequence[int], count: int) -> dict[int, list[int]]:
    """So many tokens for each, all steps but the first ahead of their collection."""
    results = [begin(context, seqs)]
    while len(results) < count:
        assert results[-1].ahead
        results.append(context.collect(goes_on=len(results) < count - 1))
    assert not results[-1].ahead
    return {seq: [row.token for result in results for row in ok(result) if row.seq == seq] for seq in seqs}


def generate_apart(context: Any, seqs: Sequence[int], count: int) -> dict[int, list[int]]:
    """The same without steps ahead."""
    results = [context.step([(seq, 1) for seq in seqs]) for _ in range(count)]
    assert not any(result.ahead for result in results)
    return {seq: [row.token for result in results for row in ok(result) if row.seq == seq] for seq in seqs}


def test_the_thread_of_steps_ahead_is_started_once(world: World) -> None:
    context = world.context()
    context.start_ahead()
    begun(world, context, 1)
    assert begin(context, [0]).ahead
    context.start_ahead()
    ok(context.collect(goes_on=False))


@pytest.mark.parametrize("n_seqs", [1, 3])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 11}, {"n_logprobs": 2}])
def test_steps_ahead_give_the_same_tokens(world: World, n_seqs: int, sampling: dict[str, Any]) -> None:
    contexts = two_begun(world, n_seqs, **sampling)
    seqs = range(n_seqs)
    assert generate(contexts[0], seqs, 12) == generate_apart(contexts[1], seqs, 12)
    for seq in seqs:
        assert contexts[0].n_committed(seq) == contexts[1].n_committed(seq)
        assert contexts[0].tokens(seq) == contexts[1].tokens(seq)
    # What comes after them too.
    assert generate_apart(contexts[0], seqs, 3) == generate(contexts[1], seqs, 3)


def test_logprobs_come_with_steps_ahead(world: World) -> None:
    context, other = two_begun(world, 1, n_logprobs=2)
    begin(context, [0])
    (row,) = ok(context.collect(goes_on=False))
    ok(other.step([(0, 1)]))
    (expected,) = ok(other.step([(0, 1)]))
    assert (row.token, row.sampled[0].logprob) == (expected.token, expected.sampled[0].logprob)
    assert row.sampled[0].top_logprobs.tolist() == expected.sampled[0].top_logprobs.tolist()


def test_without_leave_no_step_runs_ahead(world: World) -> None:
    context = world.context()
    with pytest.raises(UsageError):
        context.collect(goes_on=False)
    begun(world, context, 1)
    assert not context.step([(0, 1)]).ahead
    assert begin(context, [0]).ahead
    assert not context.collect(goes_on=False).ahead
    with pytest.raises(UsageError):
        context.collect(goes_on=True)


def test_a_prompt_that_is_not_at_its_end_has_no_step_ahead(world: World) -> None:
    context = world.opened(PROMPTS[0])
    assert not context.step([(0, 5)], ends=[(MANY, ())]).ahead
    assert context.step([(0, 15)], ends=[(MANY, ())]).ahead
    (row,) = ok(context.collect(goes_on=False))
    assert (row.n_tokens, context.n_committed(0)) == (1, 21)


def test_a_sequence_that_has_all_its_tokens_ends_the_run(world: World) -> None:
    context = world.context()
    begun(world, context, 2)
    assert context.step([(0, 1), (1, 1)], ends=[(MANY, ()), (3, ())]).ahead
    assert context.collect(goes_on=True).ahead
    assert not context.collect(goes_on=True).ahead
    assert context.n_committed(1) == len(PROMPTS[1]) + 3


def test_a_stop_token_ends_the_run(world: World) -> None:
    context, other = two_begun(world, 1)
    tokens = generate_apart(other, [0], 6)[0]
    stop = tokens[3]
    n_steps = tokens.index(stop) + 1
    result = begin(context, [0], stops=[stop, -5])
    for _ in range(n_steps - 1):
        assert result.ahead
        result = context.collect(goes_on=True)
    assert not result.ahead
    assert ok(result)[0].token == stop


def test_a_full_context_ends_the_run(world: World) -> None:
    context = world.context(n_ctx=256, n_seq_max=1, kv_unified=True)
    n_ctx = min(context.n_ctx, context.n_cells)
    prompt = [(7 * n + 3) % 250 for n in range(n_ctx - 2)]
    world.open(context, 0, prompt)
    while context.n_committed(0) < len(prompt):
        ok(context.step([(0, min(128, len(prompt) - context.n_committed(0)))]))
    assert begin(context, [0]).ahead
    assert (context.collect(goes_on=True).ahead, context.n_committed(0)) == (False, n_ctx)


def test_a_rung_context_begins_no_step(world: World) -> None:
    context = world.context()
    begun(world, context, 1)
    assert begin(context, [0]).ahead
    context.forbid_ahead()
    assert not context.collect(goes_on=True).ahead
    assert not begin(context, [0]).ahead, "it stays forbidden"
    context.allow_ahead()
    assert begin(context, [0]).ahead
    context.collect(goes_on=False)


def test_a_cancelled_member_gets_no_step_ahead(world: World) -> None:
    context = world.context()
    flags = begun(world, context, 2)
    assert begin(context, [0, 1]).ahead
    flags[1].set()
    assert not context.collect(goes_on=True).ahead  # aborted, or not if it was over by then
    context.close(1, keep=True)
    assert begin(context, [0]).ahead
    context.collect(goes_on=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda world, context: context.step([(0, 1)]),
        lambda world, context: begin(context, [0]),
        lambda world, context: context.close(0, keep=True),
        lambda world, context: context.drop_cells(1),
        lambda world, context: world.open(context, 1, PROMPTS[1]),
        lambda world, context: context.rest(),
        lambda world, context: context.share_prefix(0, 1, 4, max_bytes=1 << 30),
        lambda world, context: context.copy_out(1, max_bytes=1 << 30),
        lambda world, context: context.common_prefixes(PROMPTS[0]),
        lambda world, context: context.swap_bytes(0),
        lambda world, context: context.n_committed(0),
        lambda world, context: context.n_cells_of([0]),
        lambda world, context: context.n_cells_used,
        lambda world, context: context.tokens(0),
        lambda world, context: context.logits(0),
    ],
)
def test_beside_a_step_ahead_all_other_calls_are_refused(world: World, call: Callable[[World, Any], object]) -> None:
    context, other = two_begun(world, 1)
    tokens = [row.token for row in ok(begin(context, [0]))]
    with pytest.raises(ContextBusy):
        call(world, context)
    tokens += [row.token for row in ok(context.collect(goes_on=False))]
    assert tokens == generate_apart(other, [0], 2)[0]
    call(world, context)


def test_as_many_ends_as_items_are_wanted(world: World) -> None:
    context = world.context()
    begun(world, context, 1)
    with pytest.raises(UsageError):
        context.step([(0, 1)], ends=[])
    assert begin(context, [0], n_wanted=1).status is StepStatus.OK


def test_what_a_step_may_not_compute_is_told_by_one_that_may_run_ahead_too(world: World) -> None:
    context = world.context()
    begun(world, context, 1)
    with pytest.raises(UsageError):
        context.step([(0, 2)], ends=[(MANY, ())])
    with pytest.raises(UsageError):
        context.collect(goes_on=False)
    assert generate(context, [0], 3)


def test_times_of_steps_ahead_follow_each_other(world: World) -> None:
    context = world.context()
    begun(world, context, 1)
    results = [begin(context, [0])]
    while len(results) < 4:
        results.append(context.collect(goes_on=len(results) < 3))
    begins = [result.began_us for result in results]
    assert begins == sorted(begins)
    assert begins[0] > 0
