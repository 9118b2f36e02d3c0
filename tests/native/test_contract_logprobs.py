"""The contract of ``_native.pyi``: logprobs of prompts, masks, and starting afresh."""

import pytest

from pyllmcancel.errors import UsageError
from tests.native.conftest import PROMPT, World, mask_of, ok


@pytest.mark.parametrize("chunks", [(32, 8), (1, 20, 19)])
def test_a_prompt_is_described_whole_however_it_is_cut(world: World, chunks: tuple[int, ...]) -> None:
    context = world.opened(PROMPT, n_logprobs=2, n_described=len(PROMPT))
    described = [entry for n in chunks for row in ok(context.step([(0, n)])) for entry in row.described]
    assert [token for token, _, _ in described] == PROMPT[1:]
    for _, logprob, top in described:
        assert logprob <= float(top["logprob"][0]) <= 0.0
        assert len(top) == 2


def test_what_a_prompt_is_described_with_is_what_sampling_it_would_say(world: World) -> None:
    context = world.opened(PROMPT, n_logprobs=1, n_described=len(PROMPT))
    (row,) = ok(context.step([(0, 30)]))
    context.close(0, keep=False)
    world.open(context, 0, PROMPT[:20], n_logprobs=1)
    (shorter,) = ok(context.step([(0, 20)]))
    _, _, top = row.described[19]
    assert top["token"][0] == shorter.sampled[0].top_logprobs["token"][0]
    assert top["logprob"][0] == pytest.approx(shorter.sampled[0].top_logprobs["logprob"][0], abs=1e-4)


@pytest.mark.parametrize("option", [{"n_described": len(PROMPT)}, {"n_reusable": 0}], ids=["described", "from nothing"])
def test_a_prompt_is_computed_again_if_it_is_described_or_begun_anew(world: World, option: dict[str, int]) -> None:
    context = world.idle(PROMPT, len(PROMPT))
    world.open(context, 0, [*PROMPT, 1], **option)
    assert context.n_committed(0) == 0


def test_nothing_is_described_for_a_request_that_was_cancelled(world: World) -> None:
    context = world.context(abortable=False)
    world.open(context, 0, PROMPT, n_described=len(PROMPT)).set()
    (row,) = ok(context.step([(0, 20)]))
    assert row.described == ()


def test_a_step_describes_no_more_than_it_has_rows_for(world: World) -> None:
    context = world.opened(PROMPT, n_described=len(PROMPT))
    with pytest.raises(UsageError):
        context.step([(0, len(PROMPT))])
    assert context.n_committed(0) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_restricts_the_next_choice_only(world: World, temperature: float) -> None:
    context, sampler = world.sampled(PROMPT, temperature=temperature, seed=3)
    wanted = (world.alone(PROMPT, 1)[0] + 101) % 250
    sampler.restrict(mask_of(world.model.n_vocab, wanted))
    (row,) = ok(context.step([(0, len(PROMPT))]))
    assert row.token == wanted
    assert {ok(context.step([(0, 1)]))[0].token for _ in range(4)} != {wanted}
