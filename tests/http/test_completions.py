"""The shapes of ``/v1/completions``, whole and in chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.server.openai.answer import FINGERPRINT
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def chunks(exchange: Exchange) -> list[dict[str, Any]]:
    assert exchange.events[-1] == "[DONE]"
    assert exchange.events.count("[DONE]") == 1
    return [json.loads(event) for event in exchange.events[:-1]]


async def answer(world: World, *, stream: bool, **fields: Any) -> dict[int, tuple[str, str]]:
    """Text and finish reason of each choice."""
    exchange = await world.complete(stream=stream, **fields).end()
    assert exchange.status == 200, exchange.body
    found: dict[int, tuple[str, str]] = {}
    for part in chunks(exchange) if stream else [exchange.json()]:
        for choice in part["choices"]:
            text, reason = found.get(choice["index"], ("", None))
            assert reason is None, "nothing follows a choice's finish reason"
            found[choice["index"]] = (text + choice["text"], choice["finish_reason"])
    return found


async def test_a_whole_answer(world: World) -> None:
    world.model.answers[b"hello"] = b" world"
    before = int(time.time())
    exchange = await world.complete(model="any name", headers={"x-request-id": "mine"}).end()
    assert exchange.headers["content-type"] == "application/json"
    assert "x-should-retry" not in exchange.headers
    whole = exchange.json()
    assert before <= whole.pop("created") <= time.time()
    timings = whole.pop("timings")
    assert (timings["prompt_n"], timings["predicted_n"]) == (5, 7)
    assert whole == {
        "id": "cmpl-mine",
        "object": "text_completion",
        "model": "fake-model",
        "system_fingerprint": FINGERPRINT,
        "choices": [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 7,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_stream(world: World) -> None:
    world.model.answers[b"hello"] = b"abc"
    exchange = await world.running_stream("mine", prompt="hello", ignore_eos=False)
    await exchange.until_headers()
    assert exchange.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert exchange.headers["cache-control"] == "no-cache"
    assert exchange.headers["x-accel-buffering"] == "no"
    for expected in "abc":
        await world.step()
        chunk = await exchange.next_json()
        assert chunk.pop("created") <= time.time()
        assert chunk == {
            "id": "cmpl-mine",
            "object": "text_completion",
            "model": "fake-model",
            "system_fingerprint": FINGERPRINT,
            "choices": [{"index": 0, "text": expected, "logprobs": None, "finish_reason": None}],
        }
    await world.step()
    assert (await exchange.next_json())["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert await exchange.next_event() == "[DONE]"
    assert await exchange.next_event() is None


@streaming
async def test_max_tokens_ends_with_length(world: World, stream: bool) -> None:
    world.model.answers[b"hello"] = b" world"
    assert await answer(world, stream=stream, max_tokens=3) == {0: (" wo", "length")}


@streaming
async def test_sixteen_tokens_are_the_default(world: World, stream: bool) -> None:
    world.model.answers[b"hello"] = b"x" * 100
    assert await answer(world, stream=stream) == {0: ("x" * 16, "length")}


@streaming
async def test_null_max_tokens_goes_on_until_the_context_is_full(stream: bool) -> None:
    async with open_world(n_ctx=64) as world:
        world.model.answers[b"hello"] = b"x" * 100
        assert await answer(world, stream=stream, max_tokens=None) == {0: ("x" * 59, "length")}


@streaming
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("wor", "hello "),
        (["nowhere", "ld"], "hello wor"),
        (["world!", "lo w"], "hel"),
        ([], "hello world!"),
        ("", "hello world!"),
        ("world?", "hello world!"),
    ],
)
async def test_stop_strings_never_leak(world: World, stream: bool, stop: Any, expected: str) -> None:
    world.model.answers[b"say"] = b"hello world!"
    assert await answer(world, stream=stream, prompt="say", stop=stop, max_tokens=50) == {0: (expected, "stop")}


@streaming
async def test_n_choices_of_one_prompt(stream: bool) -> None:
    async with open_world(parallel=2) as world:
        world.model.answers[b"say"] = b"abc"
        found = await answer(world, stream=stream, prompt="say", n=3, max_tokens=2)
        assert found == dict.fromkeys(range(3), ("ab", "length"))


@streaming
async def test_several_prompts(stream: bool) -> None:
    async with open_world(parallel=2) as world:
        world.model.answers |= {b"one": b"1", b"two": b"2"}
        found = await answer(world, stream=stream, prompt=["one", "two"], n=2)
        assert found == {0: ("1", "stop"), 1: ("1", "stop"), 2: ("2", "stop"), 3: ("2", "stop")}


@streaming
@pytest.mark.parametrize("prompt", [list(b"say"), [list(b"say")], ["say"], "say"])
async def test_a_prompt_may_be_text_or_tokens_or_a_list_of_either(world: World, stream: bool, prompt: Any) -> None:
    world.model.answers[b"say"] = b"yes"
    assert await answer(world, stream=stream, prompt=prompt) == {0: ("yes", "stop")}


async def test_choices_of_one_prompt_count_it_once_in_usage(world: World) -> None:
    exchange = await world.complete("12345", n=3, max_tokens=2, ignore_eos=True).end()
    assert exchange.json()["usage"]["prompt_tokens"] == 5
    assert exchange.json()["usage"]["completion_tokens"] == 6


async def test_include_usage_comes_last_and_every_chunk_has_the_field(world: World) -> None:
    exchange = world.complete(max_tokens=3, ignore_eos=True, stream=True, stream_options={"include_usage": True})
    *earlier, last = chunks(await exchange.end())
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in earlier)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_without_include_usage_no_chunk_has_the_field(world: World) -> None:
    exchange = world.complete(max_tokens=3, stream=True)
    assert not any("usage" in chunk for chunk in chunks(await exchange.end()))


@streaming
async def test_logprobs_of_an_answer_without_a_token_are_empty_columns(world: World, stream: bool) -> None:
    world.model.answers[b"say"] = b""
    exchange = await world.complete("say", logprobs=2, stream=stream).end()
    parts = [json.loads(event) for event in exchange.events[:-1]] if stream else [exchange.json()]
    empty: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert [part["choices"][0]["logprobs"] for part in parts] == [empty]


@streaming
async def test_logprobs(world: World, stream: bool) -> None:
    world.model.answers[b"say"] = b"ab"
    exchange = await world.complete("say", logprobs=2, max_tokens=5, stream=stream).end()
    parts = chunks(exchange) if stream else [exchange.json()]
    found = [part["choices"][0]["logprobs"] for part in parts]
    found = [logprobs for logprobs in found if logprobs is not None]
    tokens = [token for logprobs in found for token in logprobs["tokens"]]
    assert tokens == ["a", "b"], "the token that ends the answer has no text, and no logprobs"
    assert [offset for logprobs in found for offset in logprobs["text_offset"]] == [0, 1]
    for logprobs in found:
        for token, logprob, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            assert -0.1 < logprob <= 0
            assert top[token] == logprob
            assert len(top) == 2


TEXTS: dict[str, Callable[[Any], Any]] = {
    COMPLETIONS: lambda told: told["choices"][0]["text"],
    CHAT: lambda told: told["choices"][0]["message"]["content"],
    "/v1/responses": lambda told: told["output"][-1]["content"][0]["text"],
    "/completion": lambda told: told["content"],
}


@pytest.mark.parametrize("path", TEXTS)
async def test_every_seed_of_64_bits_gives_a_text_of_its_own_and_always_the_same(world: World, path: str) -> None:
    message = [{"role": "user", "content": "hello"}]
    body = {"temperature": 5, "top_k": 0, "ignore_eos": True}
    if path == "/v1/responses":
        body |= {"input": "hello", "max_output_tokens": 8}
        del body["ignore_eos"]
    else:
        body |= {"messages": message, "max_tokens": 8} if path == CHAT else {"prompt": "hello", "max_tokens": 8}
    seeds = (7, 7 + 2**32, 2**32 - 1, 2**53 - 1, 2**63 - 1, 2**64 - 1, -2, -(2**63))
    found = {s: [TEXTS[path]((await world.post(path, body | {"seed": s})).json()) for _ in "ab"] for s in seeds}
    assert all(first == second for first, second in found.values())
    assert len({first for first, _ in found.values()}) == len(seeds)
    for wrong in (2**64, -(2**63) - 1, 1.5, "x"):
        assert (await world.post(path, body | {"seed": wrong})).refusal == (400, "seed")


async def test_choices_of_one_prompt_differ(world: World) -> None:
    found = await answer(world, stream=False, n=3, temperature=5, seed=7, max_tokens=8, ignore_eos=True)
    assert len(set(found.values())) == 3


async def test_a_bias_bans_a_token_and_another_forces_one(world: World) -> None:
    world.model.answers[b"say"] = b"a"
    banned = await answer(world, stream=False, prompt="say", max_tokens=1, logit_bias={"97": -100})
    assert banned[0][0] != "a"
    forced = await answer(world, stream=False, prompt="x", max_tokens=2, logit_bias={"98": 100})
    assert forced == {0: ("bb", "length")}
