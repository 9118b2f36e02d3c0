"""The official ``openai`` client, sync and async: what it leaves is cancelled, and what it must not retry it does not.

What it gets for each of its parameters is in `test_openai_parameters`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.http_process import ServerProcess, fresh_id
from tests.support.official_clients import check_cancelled_task, superseded

HELLO: Any = [{"role": "user", "content": "hello"}]
LONG = {"max_tokens": 30_000, "temperature": 0.0}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


@pytest.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


@pytest.fixture
def exact_server(long_model: Path) -> Iterator[ServerProcess]:
    """Flash attention sums up in 16 bits, in the order in which the cells lie: that differs in company."""
    options = ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")
    with ServerProcess("--model", str(long_model), "--ctx-size", "2048", "--parallel", "2", *options) as process:
        yield process.started()


def named(request_id: str, key: str | None = None) -> dict[str, Any]:
    """Options of a call that is looked for afterwards."""
    return {"extra_headers": {"X-Request-Id": request_id}, "extra_body": {"supersede": key} if key else None}


def test_a_closed_stream_is_cancelled(server: ServerProcess, client: openai.OpenAI) -> None:
    mine = fresh_id()
    stream = client.completions.create(model="any", prompt="hello", stream=True, **LONG, **named(mine))
    assert next(stream).choices[0].text is not None
    stream.close()
    assert server.wait_for(mine, status="cancelled")["cancel_reason"] == "disconnect"


def test_a_time_out_of_the_client_is_cancelled(server: ServerProcess, client: openai.OpenAI) -> None:
    mine = fresh_id()
    patient = client.with_options(timeout=3.0, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        patient.completions.create(model="any", prompt="hello", **LONG, **named(mine))
    assert server.wait_for(mine, status="cancelled")["cancel_reason"] == "disconnect"


def test_a_superseded_request_is_told_and_not_retried(server: ServerProcess, client: openai.OpenAI) -> None:
    old, new, key = fresh_id(), fresh_id(), fresh_id()

    def ask_old() -> None:
        client.completions.create(model="any", prompt="hello", **LONG, **named(old, key))

    def ask_new() -> None:
        answer = client.completions.create(model="any", prompt="hello", max_tokens=500, **named(new, key))
        assert answer.choices[0].finish_reason == "length"

    error = superseded(server, key, (old, ask_old), (new, ask_new), openai.APIStatusError)
    assert (error.status_code, error.code, error.request_id) == (499, "superseded", old)


def test_a_deadline_is_not_retried(server: ServerProcess, client: openai.OpenAI) -> None:
    session = fresh_id()
    body = {"timeout": 0.05, "session_id": session}
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="any", prompt="hello", **LONG, extra_body=body)
    assert (caught.value.status_code, caught.value.code) == (504, "deadline")
    assert sum(entry["session"] == session for entry in server.http.get("/v1/requests").json()["data"]) == 1


def test_a_superseded_stream_raises_in_the_middle(server: ServerProcess, client: openai.OpenAI) -> None:
    old, key = fresh_id(), fresh_id()
    stream = client.completions.create(model="any", prompt="hello", stream=True, **LONG, **named(old, key))
    next(stream)
    client.completions.create(model="any", prompt="hello", max_tokens=1, **named(fresh_id(), key))
    with pytest.raises(openai.APIError, match="superseded"):
        list(stream)


def test_bad_input_is_a_bad_request_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=HELLO, web_search_options={"search_context_size": "low"})
    assert (caught.value.param, caught.value.code) == ("web_search_options", "unsupported_field")
    assert caught.value.request_id is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task_is_cancelled(
    server: ServerProcess, async_client: openai.AsyncOpenAI, stream: bool
) -> None:
    mine = fresh_id()

    async def ask() -> None:
        answer: Any = await async_client.completions.create(
            model="any", prompt="hello", stream=stream, **LONG, **named(mine)
        )
        async for _ in answer:
            pass

    await check_cancelled_task(server, mine, ask())


async def test_of_sixteen_clients_half_of_which_leave_the_others_get_what_they_get_alone(
    server: ServerProcess, async_client: openai.AsyncOpenAI
) -> None:
    async def ask(number: int) -> str:
        answer = await async_client.completions.create(
            model="any", prompt=f"client {number}", max_tokens=40, temperature=0
        )
        return answer.choices[0].text

    alone = [await ask(number) for number in range(0, 16, 2)]
    tasks = [asyncio.create_task(ask(number)) for number in range(16)]
    await tasks[0]
    for task in tasks[1::2]:
        task.cancel()
    assert (await asyncio.gather(*tasks[::2])) == alone
    await asyncio.gather(*tasks[1::2], return_exceptions=True)


async def test_a_seed_gives_the_same_text_in_any_batch(exact_server: ServerProcess) -> None:
    async def ask(seed: int) -> str:
        answer = await client.completions.create(model="any", prompt="hello", max_tokens=30, temperature=1, seed=seed)
        return answer.choices[0].text

    async with openai.AsyncOpenAI(base_url=f"{exact_server.url}/v1", api_key="none") as client:
        alone = [await ask(seed) for seed in range(6)]
        assert len(set(alone)) == 6
        assert await asyncio.gather(*map(ask, range(6))) == alone
