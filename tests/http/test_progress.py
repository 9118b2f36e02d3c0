"""Timings and the progress of the prompt on OpenAI's two endpoints; and a first chunk before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

PATHS = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
LONG = "x" * 600  # more than two steps


def begin(world: World, path: str, content: str = "hello", **fields: Any) -> Exchange:
    return world.complete(content, **fields) if path == COMPLETIONS else world.chat(content, **fields)


@PATHS
async def test_an_answer_in_one_piece_has_timings(world: World, path: str) -> None:
    answer = (await begin(world, path, max_tokens=3, ignore_eos=True).end()).json()
    told = answer["timings"]
    assert (told["prompt_n"] + told["cache_n"], told["predicted_n"]) == (answer["usage"]["prompt_tokens"], 3)
    assert told["prompt_ms"] > 0
    assert told["predicted_ms"] > 0


@PATHS
@pytest.mark.parametrize(
    ("fields", "has_timings"),
    [
        ({}, [False, False, True]),
        ({"timings_per_token": True}, [True, True, True]),
        ({"stream_options": {"include_usage": True}}, [False, False, False, True]),
    ],
)
async def test_the_last_chunk_of_a_stream_has_timings_or_all_have(
    world: World, path: str, fields: dict[str, Any], has_timings: list[bool]
) -> None:
    options = {"stream": True, "max_tokens": 3, "ignore_eos": True, "top_k": 1, "logit_bias": {"97": 100}}
    chunks = (await begin(world, path, **options, **fields).end()).json_events()
    # A chat's stream has a chunk more at either end: the role, and the reason of the end.
    said = chunks[2:] if path == CHAT else chunks
    assert ["timings" in chunk for chunk in said] == has_timings
    assert said[-1]["timings"]["predicted_n"] == 3


@PATHS
async def test_the_progress_of_a_prompt_is_streamed(world: World, path: str) -> None:
    exchange = await begin(world, path, LONG, stream=True, return_progress=True, max_tokens=1).end()
    told = [chunk for chunk in exchange.json_events() if "prompt_progress" in chunk]
    progress = [chunk["prompt_progress"] for chunk in told]
    total, done = progress[0]["total"], [one["processed"] for one in progress]
    assert total >= len(LONG)
    assert (done[0], done[-1]) == (0, total)
    assert len(done) > 2
    assert done == sorted(set(done))
    for chunk in told:
        (choice,) = chunk["choices"]
        assert choice["finish_reason"] is None
        assert not (choice["delta"].get("content") if path == CHAT else choice["text"])


@PATHS
async def test_progress_is_for_streams(world: World, path: str) -> None:
    answer = (await begin(world, path, LONG, return_progress=True, max_tokens=1).end()).json()
    assert "prompt_progress" not in answer


@PATHS
async def test_a_verbose_answer_tells_what_was_read_and_written(world: World, path: str) -> None:
    prompt = {COMPLETIONS: "hello", CHAT: "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"}[path]
    options = {"max_tokens": 3, "ignore_eos": True, "top_k": 1, "logit_bias": {"97": 100}}
    answer = (await begin(world, path, **options, verbose=True).end()).json()
    assert answer["__verbose"] == {"prompt": prompt, "content": "aaa"}
    told = (await begin(world, path, **options, verbose=True, stream=True).end()).json_events()
    assert [chunk["__verbose"] for chunk in told if "__verbose" in chunk] == [answer["__verbose"]]
    assert told[-1]["choices"][0]["finish_reason"] == "length"


@PATHS
@pytest.mark.parametrize(("fields", "is_told"), [({}, True), ({"verbose": False}, False)])
async def test_a_verbose_server_tells_it_where_a_request_does_not_say(
    path: str, fields: dict[str, Any], is_told: bool
) -> None:
    async with open_world(verbose=True) as world:
        answer = (await begin(world, path, max_tokens=1, **fields).end()).json()
        assert ("__verbose" in answer) is is_told


async def test_the_role_of_a_chat_comes_while_its_request_waits() -> None:
    async with open_world(parallel=1) as world:
        neighbour = await world.running_stream("neighbour", max_tokens=2)
        exchange = world.chat(stream=True, max_tokens=1, headers={"x-request-id": "mine"})
        first = await exchange.next_json()
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert (await world.request("mine"))["status"] == "waiting"
        await world.step(2)
        await neighbour.end()
        await world.step()
        await exchange.end()
        assert exchange.events[-1] == "[DONE]"


async def test_the_headers_of_a_completion_come_while_its_request_waits() -> None:
    async with open_world(parallel=1) as world:
        await world.running_stream("neighbour", max_tokens=2)
        exchange = world.complete(stream=True, max_tokens=1, headers={"x-request-id": "mine"})
        await exchange.until_headers()
        assert (await world.request("mine"))["status"] == "waiting"
