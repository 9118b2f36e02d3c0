"""LangChain's class for OpenAI's API: it streams a chat, binds tools, and goes on with a stored response."""

from typing import Literal

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.support.http_process import ServerProcess

pytestmark = pytest.mark.long
dialects = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])


class Verdict(BaseModel):
    """A verdict."""

    grade: Literal["a", "b"]


def chat(server: ServerProcess, max_tokens: int, *, responses: bool = True) -> ChatOpenAI:
    options = {"model": "any", "temperature": 0, "max_retries": 0, "max_completion_tokens": max_tokens}
    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", use_responses_api=responses, stream_usage=True, **options
    )


@dialects
def test_a_chat_streams_with_its_usage(server: ServerProcess, responses: bool) -> None:
    chunks = list(chat(server, 5, responses=responses).stream("hello"))
    assert "".join(str(chunk.text) for chunk in chunks)
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata is not None]
    assert [usage["output_tokens"] for usage in usages] == [5]


@dialects
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured(server: ServerProcess, method: Literal["json_schema", "function_calling"], responses: bool) -> None:
    # Strict: a model of random weights would go on inventing properties.
    model = chat(server, 300, responses=responses).with_structured_output(Verdict, method=method, strict=True)
    assert isinstance(model.invoke("hello"), Verdict)


def test_a_conversation_goes_on_from_a_stored_response(server: ServerProcess) -> None:
    first = chat(server, 3).invoke("hello")
    second = chat(server, 3).invoke("and then?", previous_response_id=first.response_metadata["id"])
    assert second.usage_metadata is not None
    assert first.usage_metadata is not None
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
