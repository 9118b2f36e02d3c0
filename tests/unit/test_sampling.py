"""Which sampling parameters make sense."""

from dataclasses import fields
from typing import Any

import pytest

from pyllmcancel.engine.call_options import Options
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.sampling import MAX_LOGPROBS, SamplingParams, advised_sampling

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", NAN),
        ("top_k", -2),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("typical_p", NAN),
        ("repeat_penalty", 0.0),
        ("frequency_penalty", 101.0),
        ("presence_penalty", -101.0),
        ("penalty_last_n", -2),
        ("seed", -(2**63) - 1),
        ("seed", 2**64),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("count", [-1, MAX_LOGPROBS + 1])
def test_a_number_of_logprobs_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequestError, match="logprobs"):
        SamplingParams(n_logprobs=count)


@pytest.mark.parametrize("bias", [NAN, float("inf")])
def test_a_bias_that_is_no_number_is_refused(bias: float) -> None:
    with pytest.raises(InvalidRequestError, match="bias"):
        SamplingParams(logit_bias=((1, bias),))


def test_a_sampler_that_stands_twice_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="twice") as caught:
        SamplingParams(samplers=("top_k", "top_p", "top_k"))
    assert caught.value.param == "samplers"


def test_each_seed_of_64_bits_is_a_seed_of_its_own_for_the_samplers() -> None:
    edges = {sign * 2**bits + more for sign in (1, -1) for bits in (0, 8, 31, 32, 33, 53, 63) for more in range(-5, 6)}
    seeds = [seed for seed in edges | {2**64 - 1, 2**64 - 2, 7, 7 + 2**32} if seed >= -(2**63) and seed != -1]
    found = [SamplingParams(seed=seed).of_choice(0).seed for seed in seeds]
    assert found == [SamplingParams(seed=seed).of_choice(0).seed for seed in seeds]
    assert len(set(found)) == len(seeds)
    assert all(0 <= seed < 2**32 - 1 for seed in found)  # llama.cpp takes the next one for "random"


@pytest.mark.parametrize("seed", [7, 2**32 - 2, 2**32 - 1, 2**64 - 1, -2, -(2**63)])
def test_the_choices_of_a_request_have_seeds_of_their_own(seed: int) -> None:
    seeds = {SamplingParams(seed=seed).of_choice(number).seed for number in range(8)}
    assert len(seeds) == 8
    assert all(0 <= one < 2**32 - 1 for one in seeds)


def test_minus_one_draws_a_seed() -> None:
    drawn = {SamplingParams(seed=-1).seed for _ in range(8)}
    assert len(drawn) > 1
    assert all(0 <= seed < 2**32 for seed in drawn)


def test_the_options_of_calls_are_the_fields_of_both_classes() -> None:
    known = {one.name: one.type for kind in (GenerationParams, SamplingParams) for one in fields(kind)}
    del known["sampling"]
    assert {name: kind.__forward_arg__ for name, kind in Options.__annotations__.items()} == known
    with pytest.raises(TypeError, match="max_tokns"):
        generation_params(max_tokns=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ({"temp": "0.200000", "top_p": "0.9"}, {"temperature": 0.2, "top_p": 0.9}),
        ({"penalty_repeat": "1.1", "top_k": "20"}, {"repeat_penalty": 1.1, "top_k": 20}),
        ({"sequence": "top_k;temperature"}, {"samplers": ("top_k", "temperature")}),
        ({"temp": "warm", "top_p": "7", "sequence": "top_k;magic", "min_p": "nan", "top_k": "inf"}, {}),
    ],
)
def test_a_models_file_advises_what_is_valid(text: dict[str, str], found: dict[str, object]) -> None:
    assert advised_sampling({f"general.sampling.{name}": value for name, value in text.items()}) == found
