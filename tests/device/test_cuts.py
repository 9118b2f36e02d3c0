"""Cuts on a device: where they lie they change no bits, and where the CPU computes the rest, both are stopped."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus
from tests.support.device import load_model
from tests.support.threads import N_THREADS

PROMPT = [(7 * n + 3) % 900 for n in range(40)]
A_SECOND = {"fixed_cost": 1.0, "cost_per_token": 0.0}  # what the core is told that a step takes
A_LAYER = 0.25  # of that second: the model has four


@pytest.fixture(scope="module")
def model(model_file: Path) -> Model:
    return load_model(model_file)


def context(model: Model, **options: Any) -> Context:
    return Context(model, n_ctx=512, n_seq_max=2, n_batch=64, n_threads=N_THREADS, **options)


def prompt_step(context: Context, seq: int, raise_at: int = 0) -> Any:
    flag = CancelFlag()
    context.close(seq, keep=False)
    context.open(seq, PROMPT, Sampler(context.model, SamplingParams(temperature=0.0)), flag)
    if raise_at:
        context.raise_at(raise_at, flag)
    return context.step([(seq, len(PROMPT))], **A_SECOND)


def logits(context: Context, seq: int = 0) -> np.ndarray:
    return context.logits(seq).copy()


def test_cuts_at_the_ends_of_layers_change_no_bits(model: Model) -> None:
    whole, divided = context(model, cut_seconds=math.inf), context(model, cut_seconds=A_LAYER)
    # The first step's graph is not known yet.
    for made in (whole, divided, divided):
        assert prompt_step(made, 0).status is StepStatus.OK
    np.testing.assert_array_equal(logits(divided), logits(whole))


def test_a_cancel_stops_a_step_at_the_next_cut_and_the_next_step_is_as_before(model: Model) -> None:
    divided = context(model, cut_seconds=A_LAYER)
    n_nodes = prompt_step(divided, 0).polls
    assert prompt_step(divided, 0).status is StepStatus.OK
    expected = logits(divided)
    stops = {}
    for node in range(1, 3 * n_nodes // 4, n_nodes // 12):
        stopped = prompt_step(divided, 1, raise_at=node)
        assert stopped.status is StepStatus.ABORTED
        stops[node] = stopped.polls
        assert node <= stopped.polls <= node + n_nodes // 2
        divided.close(1, keep=False)
        assert prompt_step(divided, 0).status is StepStatus.OK
        np.testing.assert_array_equal(logits(divided), expected)
    # The part in which the flag was raised is computed to its end, and nothing after it.
    cuts = sorted(set(stops.values()))
    assert len(cuts) > 1
    assert stops == {node: min(cut for cut in cuts if cut >= node) for node in stops}


def test_after_a_step_without_cuts_a_prompts_cuts_are_as_far_apart_as_before(model: Model) -> None:
    """Nobody counts the nodes that a device computes in such a step."""
    divided = context(model, cut_seconds=A_LAYER)
    n_nodes = prompt_step(divided, 0).polls
    assert prompt_step(divided, 0).status is StepStatus.OK
    for _ in range(2):
        assert divided.step([(0, 1)], **A_SECOND).status is StepStatus.OK
    stopped = prompt_step(divided, 1, raise_at=1)
    assert stopped.status is StepStatus.ABORTED
    assert stopped.polls >= n_nodes // 8
