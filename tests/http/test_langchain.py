"""LangChain's class for OpenAI's API: it streams a chat, binds tools, and what it leaves is cancelled."""

from typing import Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.support.http_process import ServerProcess, fresh_id
from tests.support.official_clients import check_cancelled_task


class Verdict(BaseModel):
    """A verdict."""

    grade: Literal["a", "b"]


def chat(
    server: ServerProcess, request_id: str, max_tokens: int = 30_000, *, responses: bool | None = None
) -> ChatOpenAI:
    return ChatOpenAI(
        use_responses_api=responses,
        base_url=f"{server.url}/v1",
        api_key="none",
        model="any",
        temperature=0,
        max_completion_tokens=max_tokens,
        max_retries=0,
        stream_usage=True,
        # Its time-out between chunks waits in a way in which, on Python 3.11, a task's cancel gets lost.
        stream_chunk_timeout=None,
        default_headers={"X-Request-Id": request_id},
    )


@pytest.mark.long
@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_a_chat_streams_with_its_usage(server: ServerProcess, responses: bool) -> None:
    chunks = list(chat(server, fresh_id(), max_tokens=5, responses=responses).stream("hello"))
    assert "".join(str(chunk.text) for chunk in chunks)
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata is not None]
    assert [usage["output_tokens"] for usage in usages] == [5]


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
async def test_a_task_that_is_cancelled_is_cancelled(server: ServerProcess, stream: bool) -> None:
    mine = fresh_id()
    model = chat(server, mine)

    async def ask() -> None:
        if stream:
            async for _ in model.astream("hello"):
                pass
        else:
            await model.ainvoke("hello")

    await check_cancelled_task(server, mine, ask())


@pytest.mark.long
@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured(server: ServerProcess, method: Literal["json_schema", "function_calling"], responses: bool) -> None:
    # Strict: a model of random weights would go on inventing properties.
    model = chat(server, fresh_id(), max_tokens=300, responses=responses)
    answer = model.with_structured_output(Verdict, method=method, strict=True).invoke("hello")
    assert isinstance(answer, Verdict)


@pytest.mark.long
def test_a_conversation_goes_on_from_a_stored_response(server: ServerProcess) -> None:
    first = chat(server, fresh_id(), max_tokens=3, responses=True).invoke("hello")
    following = chat(server, fresh_id(), max_tokens=3, responses=True)
    second = following.invoke("and then?", previous_response_id=first.response_metadata["id"])
    assert second.usage_metadata is not None
    assert first.usage_metadata is not None
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
