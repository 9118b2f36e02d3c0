"""The effects of the fields of llama-server's ``/completion``, and the refused ones."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.support.fake_model import EOS
from tests.support.http_process import ServerProcess
from tests.support.http_world import World
from tests.support.llama_client import COMPLETION, answer, events


@pytest.mark.parametrize("stream", [False, True])
async def test_probabilities(world: World, stream: bool) -> None:
    world.model.answers[b"hello"] = "é".encode()
    found = await events(world, n_probs=2) if stream else [await answer(world, n_probs=2)]
    places = [place for event in found for place in event.get("completion_probabilities", [])]
    assert [place["id"] for place in places] == list("é".encode())
    for place in places:
        assert set(place) == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert (place["bytes"], place["token"]) == ([place["id"]], "")
        assert len(place["top_logprobs"]) == 2
        assert place["top_logprobs"][0] == {name: place[name] for name in ("id", "token", "bytes", "logprob")}
        assert place["logprob"] <= 0


async def test_probabilities_after_sampling_have_other_names(world: World) -> None:
    world.model.answers[b"hello"] = b"a"
    whole = await answer(world, n_probs=2, post_sampling_probs=True)
    (place,) = whole["completion_probabilities"]
    assert set(place) == {"id", "token", "bytes", "prob", "top_probs"}
    assert math.isclose(place["prob"], 1.0, rel_tol=1e-6)
    assert set(place["top_probs"][0]) == {"id", "token", "bytes", "prob"}


@pytest.mark.parametrize(
    "bias",
    [
        [[97, False]],
        [["a", False]],
        [["a", -1000.0]],
        {"97": False},
        {"a": -1000},
        [["za", False]],
    ],
)
async def test_a_bias_has_three_forms(world: World, bias: Any) -> None:
    world.model.answers[b"hello"] = b"a"
    whole = await answer(world, n_predict=1, logit_bias=bias, return_tokens=True)
    assert whole["tokens"] != [97]
    biases = whole["generation_settings"]["logit_bias"]
    assert biases[-1]["token"] == 97
    assert biases[-1]["bias"] in (None, -1000.0)


async def test_ignoring_the_end_of_an_answer_is_a_bias_too(world: World) -> None:
    world.model.answers[b"hello"] = b"a"
    whole = await answer(world, n_predict=4, ignore_eos=True)
    assert whole["tokens_predicted"] == 4
    assert whole["generation_settings"]["logit_bias"] == [{"bias": None, "token": EOS}]


async def test_the_same_seed_gives_the_same_answer_and_minus_one_another_each_time(world: World) -> None:
    options = {"temperature": 5, "n_predict": 8, "ignore_eos": True, "top_k": 0}
    seeded = {(await answer(world, seed=7, **options))["content"] for _ in range(3)}
    free = [await answer(world, seed=-1, **options) for _ in range(3)]
    assert (len(seeded), len({one["content"] for one in free})) == (1, 3)
    assert len({one["generation_settings"]["seed"] for one in free}) == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["top-k", "TEMP", "nucleus", "infill"], ["top_k", "temperature", "top_p", "infill"]),
        ("kti", ["top_k", "temperature", "infill"]),
        ("edskypmxt", ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
        ([], []),
    ],
)
async def test_samplers_have_names_and_letters(world: World, given: Any, expected: list[str]) -> None:
    assert (await answer(world, n_predict=1, samplers=given))["generation_settings"]["samplers"] == expected


async def test_every_sampling_field_arrives(world: World) -> None:
    fields = {
        "temperature": 0.5,
        "dynatemp_range": 0.25,
        "dynatemp_exponent": 2.0,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.25,
        "typical_p": 0.5,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "repeat_last_n": 8,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 9,
        "dry_sequence_breakers": ["x"],
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.5,
        "min_keep": 2,
        "n_probs": 1,
        "post_sampling_probs": True,
        "grammar": "root ::= [a-z]",
        "n_keep": 3,
        "n_discard": 4,
    }
    settings = (await answer(world, n_predict=1, **fields))["generation_settings"]
    assert {name: settings[name] for name in fields} == fields


async def test_a_negative_temperature_is_greedy_and_a_dry_base_below_one_the_servers(world: World) -> None:
    settings = (await answer(world, n_predict=1, temperature=-1, dry_base=0.5))["generation_settings"]
    assert (settings["temperature"], settings["dry_base"]) == (0.0, 1.75)


async def test_json_obeys_its_schema(world: World) -> None:
    whole = await answer(world, json_schema={"const": "42"}, n_predict=20)
    assert (json.loads(whole["content"]), whole["stop_type"]) == ("42", "eos")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {"prompt_string": 1}}, "prompt"),
        ({"prompt": [[1, [2]]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"n_predict": -2}, "n_predict"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"samplers": ["top_q"]}, "samplers"),
        ({"samplers": "kz"}, "samplers"),
        ({"logit_bias": [[1, True]]}, "logit_bias"),
        ({"logit_bias": [[300, 1.0]]}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1.0}}, "logit_bias"),
        ({"logit_bias": [["a", 1e300]]}, "logit_bias"),
        ({"grammar": "no root"}, "grammar"),
        ({"json_schema": {"type": "hiccup"}}, "json_schema"),
        ({"json_schema": {}, "grammar": "root ::= [a-z]"}, "json_schema"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"response_fields": "content"}, "response_fields"),
        ({"t_max_predict_ms": "soon"}, "t_max_predict_ms"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_done_is_named(world: World, fields: dict[str, Any], param: str, stream: bool) -> None:
    exchange = await world.post(COMPLETION, {"prompt": "x", "stream": stream} | fields)
    assert exchange.status == 400, exchange.body
    assert exchange.json()["error"]["param"] == param, exchange.json()
    assert await world.requests() == []


def test_a_grammar_a_schema_and_probabilities_of_the_real_engine(server: ServerProcess) -> None:
    options = {"prompt": "hello", "n_predict": 8, "n_probs": 3}
    whole = server.http.post("/completion", json=options | {"grammar": 'root ::= "aaaa"'}).json()
    assert (whole["content"], whole["stop_type"]) == ("aaaa", "eos")
    whole = server.http.post("/completion", json=options | {"json_schema": {"const": 7}}).json()
    assert whole["content"] == "7"
    whole = server.http.post("/completion", json=options | {"post_sampling_probs": True, "top_k": 2}).json()
    for place in whole["completion_probabilities"]:
        assert 1 <= len(place["top_probs"]) <= 2
        assert sum(one["prob"] for one in place["top_probs"]) == pytest.approx(1, abs=1e-5)
