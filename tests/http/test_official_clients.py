"""The official ``openai`` and ``anthropic`` clients: their types read every answer, what they leave is cancelled, and
what they must not retry they do not.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.support.http_process import ServerProcess, fresh_id
from tests.support.official_clients import check_cancelled_task, superseded

Client = openai.OpenAI | anthropic.Anthropic
HELLO: Any = [{"role": "user", "content": "hello"}]


# -- cancels, by either client ----------------------------------------------------------------------------------------


@pytest.fixture(params=["openai", "anthropic"])
def either(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    """A client that retries as it does by default."""
    kind = openai.OpenAI if request.param == "openai" else anthropic.Anthropic
    with kind(base_url=f"{server.url}/v1" if request.param == "openai" else server.url, api_key="none") as made:
        yield made


def ask(client: Client, request_id: str, key: str = "", **fields: Any) -> Any:
    """Ask for a long answer to a chat, unless `fields` say otherwise."""
    fields = {"model": "any", "messages": HELLO, "max_tokens": 30_000} | fields
    fields["extra_body"] = {"temperature": 0.0} | fields.get("extra_body", {})
    headers = {"X-Request-Id": request_id} | ({"X-Supersede": key} if key else {})
    create: Any = client.chat.completions.create if isinstance(client, openai.OpenAI) else client.messages.create
    return create(extra_headers=headers, **{"timeout": 60} | fields)


def test_a_closed_stream_is_cancelled(server: ServerProcess, either: Client) -> None:
    mine = fresh_id()
    stream = ask(either, mine, stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    assert server.wait_for(mine, status="cancelled")["cancel_reason"] == "disconnect"


def test_a_superseded_request_is_told_and_not_retried(server: ServerProcess, either: Client) -> None:
    old, new, key = fresh_id(), fresh_id(), fresh_id()
    calls: list[tuple[str, Callable[[], object]]] = [
        (old, lambda: ask(either, old, key)),
        (new, lambda: ask(either, new, key, max_tokens=100)),
    ]
    kind: Any = openai.APIStatusError if isinstance(either, openai.OpenAI) else anthropic.APIStatusError
    error = superseded(server, key, *calls, kind)
    assert (error.status_code, error.request_id) == (499, old)
    assert (error.code if isinstance(error, openai.APIError) else error.type) in ("superseded", "invalid_request_error")


def test_a_deadline_is_not_retried(server: ServerProcess, either: Client) -> None:
    session = fresh_id()
    with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)) as caught:
        ask(either, fresh_id(), extra_body={"timeout": 0.05, "session_id": session})
    assert caught.value.status_code == 504
    assert sum(entry["session"] == session for entry in server.http.get("/v1/requests").json()["data"]) == 1


def test_a_cancelled_stream_raises_in_the_middle(server: ServerProcess, either: Client) -> None:
    mine = fresh_id()
    stream = ask(either, mine, stream=True)
    next(stream)
    server.cancel(mine)
    with pytest.raises((openai.APIError, anthropic.APIStatusError), match="explicit"):
        list(stream)


def test_a_time_out_of_the_client_is_cancelled(server: ServerProcess, either: Client) -> None:
    mine = fresh_id()
    package: Any = openai if isinstance(either, openai.OpenAI) else anthropic
    with pytest.raises(package.APITimeoutError):
        ask(either.with_options(max_retries=0), mine, timeout=package.Timeout(60.0, read=0.3))
    assert server.wait_for(mine, status="cancelled")["cancel_reason"] == "disconnect"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task_is_cancelled(server: ServerProcess, stream: bool) -> None:
    mine = fresh_id()

    async def ask() -> None:
        fields: Any = {"max_tokens": 30_000, "temperature": 0.0, "extra_headers": {"X-Request-Id": mine}}
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            async for _ in await client.completions.create(model="any", prompt="hello", stream=stream, **fields):
                pass

    await check_cancelled_task(server, mine, ask())


# -- openai, and the packaged model -----------------------------------------------------------------------------------


PROMPT = "def add(a, b):\n    "
SHORT: Any = {"model": "any", "prompt": PROMPT, "max_tokens": 8, "seed": 1}


class Verdict(BaseModel):
    sure: bool
    grade: Literal["good", "bad"]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        ServerProcess() as process,
        openai.OpenAI(base_url=f"{process.started().url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made
        process.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_logprobs(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.completions.create(**SHORT, echo=True, logprobs=3, stream=stream)
    parts = list(answer) if stream else [answer]
    text = "".join(part.choices[0].text for part in parts)
    found = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs is not None]
    tokens = [token for logprobs in found for token in logprobs.tokens]
    offsets = [offset for logprobs in found for offset in logprobs.text_offset]
    assert text.startswith(PROMPT)
    assert "".join(tokens) == text
    assert all(text[offset:].startswith(token) for token, offset in zip(tokens, offsets, strict=True))
    assert found[0].token_logprobs[0] is None
    assert all(logprob <= 0 for logprobs in found for logprob in logprobs.token_logprobs if logprob is not None)


def test_helpers_parse_an_object_and_tell_of_content(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="any", messages=HELLO, response_format=Verdict, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, Verdict)
    fields: Any = {"temperature": 0, "stop": ["."], "stream_options": {"include_usage": True}}
    greeting: Any = {"role": "user", "content": "Hello!"}
    with client.chat.completions.stream(model="any", messages=[greeting], **fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content
    assert final.usage is not None
    assert final.usage.completion_tokens > 1


# -- anthropic --------------------------------------------------------------------------------------------------------


PROPERTIES = {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city", "days"], "additionalProperties": False}
WEATHER: Any = {"name": "get_weather", "description": "Today's weather.", "input_schema": SCHEMA}
ASKED: Any = {"model": "any", "max_tokens": 500, "extra_body": {"temperature": 0.0}}


@pytest.fixture
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as made:
        yield made


def test_the_final_message_of_a_stream_is_that_of_an_answer_in_one_piece(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(messages=HELLO, **ASKED | {"max_tokens": 12})
    with claude.messages.stream(messages=HELLO, **ASKED | {"max_tokens": 12}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"} <= kinds
    (said,), (again,) = final.content, whole.content
    assert said.type == again.type == "text"
    assert said.text == again.text
    assert (final.stop_reason, final.role, final.model) == (whole.stop_reason, whole.role, whole.model)
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_called_and_its_result_is_sent_back(claude: anthropic.Anthropic, choice: Any) -> None:
    asked = ASKED | {"tools": [WEATHER]}
    forced = asked | {"messages": HELLO, "tool_choice": choice | {"disable_parallel_tool_use": True}}
    whole = claude.messages.create(**forced)
    with claude.messages.stream(**forced) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == whole.stop_reason == "tool_use"
    (call,), (again,) = message.content, whole.content
    assert call.type == again.type == "tool_use"
    assert (call.name, call.input) == (again.name, again.input)
    assert (call.name, call.input["city"] in ("Paris", "Rome")) == ("get_weather", True)
    assert call.input["days"] in (1, 2)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns: Any = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert claude.messages.create(messages=turns, **asked | {"max_tokens": 4}).usage.output_tokens == 4


def test_a_schema_is_obeyed_and_models_are_listed(claude: anthropic.Anthropic) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = claude.messages.create(messages=HELLO, **ASKED, output_config=config)
    (block,) = message.content
    assert block.type == "text"
    assert (block.text[0], message.stop_reason) == ("{", "end_turn")
    (model,) = claude.models.list()
    assert (model.type, model.max_input_tokens) == ("model", 32_768)
    assert claude.models.retrieve(model.id) == model
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.models.retrieve("other")
    assert caught.value.type == "not_found_error"
