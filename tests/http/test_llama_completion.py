"""llama-server's ``/completion`` and ``/infill``: the shapes of answers, effects of fields, and editors' requests."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pyllmcancel.server.llama.answer import CompletionAnswer, CompletionEvent
from tests.support.fake_model import EOS
from tests.support.http_process import ServerProcess
from tests.support.http_world import World, open_world
from tests.support.llama_client import COMPLETION, answer, events, parsed

FINAL = {
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
    *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached"),
    "timings",
}
PARTIAL = {"index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"}
TIMINGS = {"cache_n"} | {
    f"{part}_{what}" for part in ("prompt", "predicted") for what in ("n", "ms", "per_token_ms", "per_second")
}


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_a_whole_answer(world: World, path: str) -> None:
    world.model.answers[b"hello"] = b" wo\nrld"
    whole = await answer(world, path=path, temperature=0, seed=7, model="any")
    assert set(whole) == FINAL
    assert set(whole["timings"]) == TIMINGS
    assert (whole["content"], whole["stop"], whole["stop_type"], whole["stopping_word"]) == (
        " wo\nrld",
        True,
        "eos",
        "",
    )
    assert (whole["tokens"], whole["index"], whole["model"]) == ([], 0, "fake-model")
    assert (whole["tokens_evaluated"], whole["tokens_predicted"], whole["tokens_cached"]) == (5, 8, 12)
    assert (whole["prompt"], whole["has_new_line"], whole["truncated"]) == ("hello", True, False)
    assert (whole["timings"]["prompt_n"], whole["timings"]["predicted_n"], whole["timings"]["cache_n"]) == (5, 8, 0)
    settings = whole["generation_settings"]
    assert (settings["temperature"], settings["seed"], settings["n_predict"], settings["stream"]) == (0.0, 7, -1, False)


async def test_a_stream_ends_with_its_final_event_and_without_done(world: World) -> None:
    world.model.answers[b"hello"] = b"ab"
    first, second, last = await events(world)
    for event, text in ((first, "a"), (second, "b")):
        assert set(event) == PARTIAL
        assert (event["content"], event["stop"], event["tokens"]) == (text, False, list(text.encode()))
    assert [event["tokens_predicted"] for event in (first, second, last)] == [1, 2, 3]
    assert set(last) == FINAL
    assert (last["content"], last["tokens"], last["stop"], last["stop_type"]) == ("", [], True, "eos")


async def test_a_character_of_several_tokens_comes_with_all_of_them(world: World) -> None:
    world.model.answers[b"hello"] = "é!".encode()
    found = await events(world)
    assert [(event["content"], event["tokens"]) for event in found[:-1]] == [("é", list("é".encode())), ("!", [33])]


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "word"),
    [
        ({}, "one, two", "eos", ""),
        ({"n_predict": 3}, "one", "limit", ""),
        ({"max_tokens": 3}, "one", "limit", ""),
        ({"n_predict": -1}, "one, two", "eos", ""),
        ({"stop": ["nothing", ", "]}, "one", "word", ", "),
        ({"stop": "two"}, "one, ", "word", "two"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_why_an_answer_stops(
    world: World, fields: dict[str, Any], content: str, stop_type: str, word: str, *, stream: bool
) -> None:
    world.model.answers[b"hello"] = b"one, two"
    found = await events(world, **fields) if stream else [await answer(world, **fields)]
    assert "".join(event["content"] for event in found) == content
    assert (found[-1]["stop_type"], found[-1]["stopping_word"]) == (stop_type, word)


async def test_nothing_is_generated_for_n_predict_0_and_the_prompt_is_in_the_cache_then(world: World) -> None:
    whole = await answer(world, "warm this up", n_predict=0)
    assert (whole["content"], whole["tokens_predicted"], whole["stop_type"]) == ("", 0, "limit")
    assert (whole["timings"]["prompt_n"], whole["timings"]["predicted_ms"]) == (12, 0.0)
    assert (await answer(world, "warm this up", n_predict=1))["timings"]["cache_n"] == 11
    uncached = (await answer(world, "warm this up", n_predict=1, cache_prompt=False))["timings"]
    assert (uncached["cache_n"], uncached["prompt_n"]) == (0, 12)


async def test_an_answer_that_fills_the_context_is_truncated_and_no_end_of_it_a_bias() -> None:
    async with open_world(n_ctx=64) as world:
        whole = await answer(world, ignore_eos=True, temperature=-1, dry_base=0.5)
        assert (whole["tokens_predicted"], whole["truncated"], whole["stop_type"]) == (59, True, "limit")
        settings = whole["generation_settings"]
        assert settings["logit_bias"] == [{"bias": None, "token": EOS}]
        assert (settings["temperature"], settings["dry_base"]) == (0.0, 1.75), "greedy, and the server's"


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("ab", "ab"),
        ([97, 98], "ab"),
        ([97, "bc", 100], "abcd"),
        (["ab", 99], "abc"),
        ({"prompt_string": "ab"}, "ab"),
        ({"prompt_string": "ab", "multimodal_data": []}, "ab"),
        (["ab"], "ab"),
        ([[97, 98]], "ab"),
    ],
)
async def test_a_prompt_may_be_text_or_tokens_or_both(world: World, prompt: Any, text: str) -> None:
    assert (await answer(world, prompt, n_predict=1))["prompt"] == text


async def test_several_prompts_have_several_answers(world: World) -> None:
    prompts = [[97, "b"], "cd", {"prompt_string": "ef"}, [103]]
    found = await answer(world, prompts, n_predict=1)
    assert [(one["index"], one["prompt"]) for one in found] == [(0, "ab"), (1, "cd"), (2, "ef"), (3, "g")]


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
async def test_several_answers_to_one_prompt(world: World, name: str) -> None:
    options = {name: 3, "n_predict": 8, "temperature": 5, "ignore_eos": True}
    found = await answer(world, **options)
    assert len({one["content"] for one in found}) == 3
    streamed = await events(world, **options)
    assert [event["index"] for event in streamed if event["stop"]] == [0, 1, 2]


async def test_only_the_fields_that_were_asked_for(world: World) -> None:
    fields = ["content", "timings/prompt_n", "generation_settings/n_predict", "no/such", "stop/no", ""]
    found = await answer(world, n_predict=2, response_fields=fields)
    assert set(found) == {"content", "timings/prompt_n", "generation_settings/n_predict"}
    assert (found["timings/prompt_n"], found["generation_settings/n_predict"]) == (5, 2)
    assert await answer(world, n_predict=1, response_fields=[""]) == {}


async def test_progress_and_timings_are_streamed_if_asked_for(world: World) -> None:
    prompt = "x" * 600  # several steps
    found = await events(world, prompt, n_predict=2, return_progress=True, timings_per_token=True)
    steps = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    done = [step["processed"] for step in steps]
    assert (done[0], done[-1]) == (0, 600)
    assert len(done) > 3
    assert done == sorted(set(done))
    assert {(step["total"], step["cache"]) for step in steps} == {(600, 0)}
    assert all(set(event["timings"]) == TIMINGS for event in found)
    assert [event["timings"]["prompt_n"] for event in found[: len(done)]] == done
    assert found[0]["timings"]["prompt_ms"] == 0.0
    again = await events(world, prompt, n_predict=1, return_progress=True)
    steps = [event["prompt_progress"] for event in again if "prompt_progress" in event]
    assert [(step["processed"], step["cache"]) for step in steps] == [(599, 599), (600, 599)]


async def test_rates_count_steps(world: World) -> None:
    """The first token comes with the prompt's last, and costs no step of its own."""
    one = (await answer(world, n_predict=1, ignore_eos=True))["timings"]
    assert (one["predicted_n"], one["predicted_per_second"], one["predicted_per_token_ms"]) == (1, 0.0, 0.0)
    many = (await answer(world, n_predict=9, ignore_eos=True))["timings"]
    assert math.isclose(many["predicted_per_second"], 8e3 / many["predicted_ms"])
    assert math.isclose(many["predicted_per_token_ms"], many["predicted_ms"] / 8)


async def test_answers_and_events_are_as_the_openapi_page_describes_them(world: World) -> None:
    fields = {"n_probs": 1, "timings_per_token": True, "return_progress": True, "n_predict": 3}
    whole, event = TypeAdapter(CompletionAnswer), TypeAdapter(CompletionEvent)
    whole.validate_python(await answer(world, **fields), strict=True)
    *partial, last = await events(world, **fields)
    for part in partial:
        event.validate_python(part, strict=True)
    whole.validate_python(last, strict=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_when_one_of_two_answers_is_done_and_one_cut_neither_looks_complete(world: World, stream: bool) -> None:
    world.hold()
    world.model.answers[b"short"] = b"a"
    body = {"prompt": ["short", "hello"], "n_predict": 100, "temperature": 0, "stream": stream}
    exchange = world.begin("POST", COMPLETION, body, headers={"x-request-id": "mine"})
    await world.step(3)
    await world.held()
    cancel = world.begin("POST", "/v1/requests/mine/cancel")
    await world.cancelling("mine")
    world.gate.open()
    await cancel.end()
    await exchange.end()
    *before, last = parsed(exchange) if stream else [exchange.json()]
    assert last["error"]["reason"] == "explicit"
    assert not any(event["stop"] for event in before)


# -- the effects of fields, and the refused ones -----------------------------------------------------------------------


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
    "bias", [[[97, False]], [["a", False]], [["a", -1000.0]], {"97": False}, {"a": -1000}, [["za", False]]]
)
async def test_a_bias_has_three_forms(world: World, bias: Any) -> None:
    world.model.answers[b"hello"] = b"a"
    whole = await answer(world, n_predict=1, logit_bias=bias, return_tokens=True)
    assert whole["tokens"] != [97]
    biases = whole["generation_settings"]["logit_bias"]
    assert biases[-1]["token"] == 97
    assert biases[-1]["bias"] in (None, -1000.0)


async def test_minus_one_is_another_seed_each_time(world: World) -> None:
    options = {"temperature": 5, "n_predict": 8, "ignore_eos": True, "top_k": 0}
    free = [await answer(world, seed=-1, **options) for _ in range(3)]
    assert len({one["content"] for one in free}) == len({one["generation_settings"]["seed"] for one in free}) == 3


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


# Fields with a value of their own each, so that none takes another's place.
FRACTIONS = (
    *("temperature", "dynatemp_range", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"),
    *("presence_penalty", "frequency_penalty", "dry_multiplier", "mirostat_eta"),
)
NUMBERS = ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n", "min_keep", "n_keep", "n_discard")
ABOVE_ONE = ("dynatemp_exponent", "top_n_sigma", "repeat_penalty", "dry_base", "mirostat_tau")


async def test_every_sampling_field_arrives(world: World) -> None:
    fields: dict[str, Any] = {name: number / 32 for number, name in enumerate(FRACTIONS, 1)}
    fields |= {name: number for number, name in enumerate(NUMBERS, 3)}
    fields |= {name: 1 + number / 8 for number, name in enumerate(ABOVE_ONE, 1)}
    fields |= {"mirostat": 2, "n_probs": 1, "post_sampling_probs": True, "dry_sequence_breakers": ["x"]}
    fields |= {"grammar": "root ::= [a-z]"}
    settings = (await answer(world, n_predict=1, **fields))["generation_settings"]
    assert {name: settings[name] for name in fields} == fields


async def test_json_obeys_its_schema(world: World) -> None:
    whole = await answer(world, json_schema={"const": "42"}, n_predict=20)
    assert (json.loads(whole["content"]), whole["stop_type"]) == ("42", "eos")


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


# -- ``/infill``, with the very bodies that an editor's plug-in sends --------------------------------------------------


PRE, SUF, MID, REP, SEP = 1, 2, 3, 4, 5
SPECIAL = {"eos": 256, "fim_pre": PRE, "fim_suf": SUF, "fim_mid": MID, "fim_rep": REP, "fim_sep": SEP}
GAP = {"input_prefix": "def f():\n", "input_suffix": "\nf()\n"}
# What llama.vim sends while its user types, and between, to have the snippets in the cache.
VIM, VIM_WARMING_UP, *_ = (
    request["body"]
    for request in json.loads((Path(__file__).parent / "replay" / "llama_vim.json").read_text())["requests"]
)
VIM |= {"t_max_prompt_ms": 60_000, "t_max_predict_ms": 60_000}  # on a busy machine


def can_fill_gaps(world: World, **special: int) -> None:
    world.model.special_tokens = special or SPECIAL


async def fill(world: World, body: dict[str, Any]) -> Any:
    return (await world.served("/infill", body)).json()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/infill"])
@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("superseded", 499, "invalid_request_error"),
        ("explicit", 499, "invalid_request_error"),
        ("deadline", 504, "unavailable_error"),
        ("disconnect", 0, ""),
    ],
)
async def test_a_cut_answer_says_why_and_does_not_look_complete(
    world: World, path: str, reason: str, *, status: int, kind: str, stream: bool
) -> None:
    can_fill_gaps(world)
    world.hold()
    body = {"prompt": "hello", "n_predict": 8, "ignore_eos": True, "temperature": 0, "stream": stream}
    headers = {"x-request-id": "mine", "x-supersede": "key"}
    exchange = world.begin("POST", path, (GAP if path == "/infill" else {}) | body, headers=headers)
    await world.step(2)
    await world.held()
    if reason == "disconnect":
        exchange.leave()
    await world.bring_about(reason)
    await world.cancelling("mine")
    world.gate.open()
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"], seen["phase"]) == ("cancelled", reason, "decode")
    await exchange.end()
    if reason == "disconnect":
        return
    assert exchange.status == (200 if stream else status)
    *before, last = exchange.json_events() if stream else [exchange.json()]
    assert all(event["stop"] is False for event in before)
    assert (last["error"]["code"], last["error"]["reason"], last["error"]["type"]) == (status, reason, kind)
    assert last["usage"]["completion_tokens"] >= 0
    assert "stop" not in last


async def test_what_llama_vim_sends_is_answered_as_it_expects(world: World) -> None:
    can_fill_gaps(world)
    prompt = bytes([REP, *b"project\n", SEP, *b"a.py\nimport math\n", SEP, *b"file\n"])
    prompt += bytes([PRE, *b"def add(a, b):\n    ", SUF, *b"\nprint(add(1, 2))\n", MID])
    world.model.answers[prompt] = b"return"
    found = await fill(world, VIM)
    assert set(found) == set(VIM["response_fields"])
    assert (found["content"], found["truncated"]) == ("return", False)
    assert found["tokens_cached"] == len(prompt) + len("return")
    assert found["timings/prompt_n"] == len(prompt)


async def test_what_llama_vim_sends_between_warms_the_cache_up(world: World) -> None:
    """It allows a millisecond for the prompt, which is all that it wants computed."""
    can_fill_gaps(world)
    body = VIM_WARMING_UP | {"input_extra": [{"text": "x" * 600, "time": [1, 2], "filename": "a.py"}]}
    assert await fill(world, body) == {}
    assert (await fill(world, VIM | {"input_extra": body["input_extra"]}))["timings/prompt_n"] < 60


async def test_an_answer_ends_before_a_line_that_is_indented_too_little(world: World) -> None:
    can_fill_gaps(world)
    world.model.answers[bytes([PRE, *b"def f():\n    x", SUF, *b"\nf()\n", MID])] = b" = 1\n    y = 2\n  z"
    found = await fill(world, GAP | {"prompt": "    x", "n_indent": 4})
    assert (found["content"], found["stop_type"]) == (" = 1\n    y = 2\n  ", "limit")
    assert found["tokens_predicted"] == len(" = 1\n    y = 2\n  z")


async def test_what_surrounds_the_gap_may_be_tokens_and_texts(world: World) -> None:
    can_fill_gaps(world)
    found = await fill(world, {"input_prefix": [97, "bc"], "input_suffix": ["d", 101], "n_predict": 1})
    assert found["prompt"].encode() == bytes([PRE, *b"abc", SUF, *b"de", MID])


@pytest.mark.parametrize(("n_predict", "least", "most"), [(64, 128, 256 - 64), (100_000, 100, 256)])
async def test_a_long_text_is_cut_so_that_the_answer_has_room_and_half_of_the_context_stays(
    n_predict: int, least: int, most: int
) -> None:
    async with open_world(n_ctx=256) as world:
        can_fill_gaps(world)
        body = {"input_prefix": "a" * 5000, "input_suffix": "b" * 5000, "n_predict": n_predict, "t_max_predict_ms": 1}
        found = await fill(world, body)
        assert least < found["tokens_evaluated"] <= most
        assert found["prompt"].endswith("b\x03")


async def test_a_model_that_cannot_fill_gaps_says_so(world: World) -> None:
    can_fill_gaps(world, eos=256)
    exchange = await world.post("/infill", GAP)
    assert exchange.status == 400
    assert "fim_pre" in exchange.json()["error"]["message"]
