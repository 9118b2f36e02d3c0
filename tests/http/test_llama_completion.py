"""llama-server's ``/completion``: the shapes of its answers, whole and in events."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import TypeAdapter

from pyllmcancel.server.llama.answer import CompletionAnswer, CompletionEvent
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
    assert (settings["temperature"], settings["seed"], settings["n_predict"], settings["stream"]) == (
        0.0,
        7,
        -1,
        False,
    )


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


async def test_a_prompt_that_is_not_to_be_cached_is_computed_again(world: World) -> None:
    await answer(world, n_predict=1)
    again = (await answer(world, n_predict=1, cache_prompt=False))["timings"]
    assert (again["cache_n"], again["prompt_n"]) == (0, 5)


async def test_an_answer_that_fills_the_context_is_truncated() -> None:
    async with open_world(n_ctx=64) as world:
        whole = await answer(world, ignore_eos=True)
        assert (whole["tokens_predicted"], whole["truncated"], whole["stop_type"]) == (59, True, "limit")


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


async def test_the_tokens_of_an_answer_are_there_if_asked_for(world: World) -> None:
    world.model.answers[b"hello"] = b"ab"
    assert (await answer(world, return_tokens=True))["tokens"] == [97, 98]


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


async def test_progress_begins_with_what_is_in_the_cache(world: World) -> None:
    await answer(world, n_predict=0)
    found = await events(world, n_predict=1, return_progress=True)
    steps = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    assert [(step["processed"], step["cache"], step["total"]) for step in steps] == [(4, 4, 5), (5, 4, 5)]


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
async def test_when_one_of_two_answers_is_done_and_the_other_cut_neither_looks_complete(
    world: World, stream: bool
) -> None:
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
