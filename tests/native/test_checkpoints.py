"""Memories that cannot be rolled back go on from their last checkpoint, with the same logits as from the start."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus
from tests.support.device import load_model
from tests.support.threads import N_THREADS

CHUNK = 32
PROMPT = [int(token) for token in np.random.default_rng(3).integers(1, 1000, 200)]
KINDS = ("recurrent", "hybrid")


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, model_files: dict[str, Path]) -> Model:
    return load_model(model_files[request.param])


def context(model: Model, **options: int) -> Context:
    options = {"n_seq_max": 2, "checkpoint_interval": CHUNK} | options
    return Context(model, n_ctx=1024, n_batch=128, n_threads=N_THREADS, **options)


def checkpoint_of(model: Model) -> int:
    """The bytes of one checkpoint."""
    one = context(model, n_checkpoints=1)
    start(one, PROMPT)
    prefill(one, 64)
    return one.checkpoint_bytes


def start(context: Context, tokens: list[int], seq: int = 0) -> tuple[CancelFlag, int]:
    flag = CancelFlag()
    return flag, context.open(seq, tokens, Sampler(context.model, SamplingParams(temperature=0.0)), flag)


def prefill(context: Context, n_tokens: int, seq: int = 0) -> None:
    while context.n_committed(seq) < n_tokens:
        result = context.step([(seq, min(CHUNK, n_tokens - context.n_committed(seq)))])
        assert result.status is StepStatus.OK


def logits_of(context: Context, tokens: list[int]) -> NDArray[np.float32]:
    start(context, tokens)
    prefill(context, len(tokens))
    return context.logits(0).copy()


def abort_after(context: Context, n_tokens: int) -> None:
    """Leave sequence 0 as a prompt that was cancelled inside the chunk after `n_tokens`."""
    flag, _ = start(context, PROMPT)
    prefill(context, n_tokens)
    flag.set()
    assert context.step([(0, CHUNK)]).status is StepStatus.ABORTED
    context.close(0, keep=True)


@pytest.mark.parametrize(("prompt", "n_kept"), [(PROMPT, 160), ([*PROMPT[:120], 1, 2, 3, *PROMPT[123:]], 96)])
def test_an_abort_goes_on_from_the_checkpoint_before_a_change(model: Model, prompt: list[int], n_kept: int) -> None:
    resumed = context(model)
    abort_after(resumed, 160)
    assert resumed.common_prefixes(prompt)[0] == n_kept
    assert np.array_equal(logits_of(resumed, prompt), logits_of(context(model), prompt))


def test_without_checkpoints_an_aborted_prompt_starts_again(model: Model) -> None:
    resumed = context(model, checkpoint_interval=0)
    abort_after(resumed, 160)
    _, n_kept = start(resumed, PROMPT)
    assert n_kept == 0
    assert resumed.checkpoint_bytes == 0


def test_only_so_many_checkpoints_of_a_sequence_are_kept(model: Model) -> None:
    one = context(model, n_checkpoints=1)
    start(one, PROMPT)
    prefill(one, len(PROMPT))
    assert one.checkpoint_bytes == checkpoint_of(model) > 0


def test_checkpoints_stay_within_their_bytes(model: Model) -> None:
    bounded = context(model, checkpoint_bytes=1)
    start(bounded, PROMPT)
    prefill(bounded, len(PROMPT))
    assert bounded.checkpoint_bytes == 0


def test_dropped_cells_take_their_checkpoints_along(model: Model) -> None:
    dropped = context(model)
    abort_after(dropped, 160)
    dropped.drop_cells(0)
    assert dropped.checkpoint_bytes == 0
    assert dropped.common_prefixes(PROMPT) == [0, 0]


def test_the_idle_sequence_with_most_checkpoints_gives_way_first(model: Model) -> None:
    room = 4 * checkpoint_of(model)
    full = context(model, n_seq_max=4, checkpoint_bytes=room)
    few, many = PROMPT[:64], PROMPT[:160][::-1]
    for seq, prompt in ((0, few), (1, many)):
        start(full, prompt, seq)
        prefill(full, len(prompt), seq)
        full.close(seq, keep=True)
    assert full.checkpoint_bytes == room
    before = full.common_prefixes([*few, 1])[0], full.common_prefixes([*few[:40], 1, 1])[0]
    start(full, PROMPT[::2], seq=2)
    prefill(full, 64, seq=2)
    assert (full.common_prefixes([*few, 1])[0], full.common_prefixes([*few[:40], 1, 1])[0]) == before


def test_an_attention_memory_needs_none(model_files: dict[str, Path]) -> None:
    attention = context(load_model(model_files["attention"]))
    abort_after(attention, 160)
    assert attention.checkpoint_bytes == 0
    assert attention.common_prefixes(PROMPT)[0] == 160


def test_idle_sequences_give_way_to_a_prompt_that_has_no_checkpoint(model: Model) -> None:
    full = context(model, checkpoint_bytes=4 * checkpoint_of(model))
    abort_after(full, 160)  # idle now, and holds all that there is room for
    flag, _ = start(full, PROMPT[::-1], seq=1)
    prefill(full, 96, seq=1)
    flag.set()
    assert full.step([(1, CHUNK)]).status is StepStatus.ABORTED
    assert full.n_committed(1) == 96
