"""The official ``anthropic`` client, sync and async: its types read every answer, and what it leaves is cancelled."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.support.http_process import ServerProcess, fresh_id
from tests.support.official_clients import superseded

HELLO: Any = [{"role": "user", "content": "hello"}]
LONG: Any = {"model": "any", "max_tokens": 30_000, "messages": HELLO, "extra_body": {"temperature": 0.0}}
SHORT: Any = LONG | {"max_tokens": 12}
CITIES: Any = {
    "name": "get_weather",
    "description": "Today's weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as made:
        yield made


def named(request_id: str, key: str | None = None) -> dict[str, Any]:
    return {"extra_headers": {"X-Request-Id": request_id} | ({"X-Supersede": key} if key else {})}


# -- answers ----------------------------------------------------------------------------------------------------------


def test_the_final_message_of_a_stream_is_that_of_an_answer_in_one_piece(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**SHORT)
    with client.messages.stream(**SHORT) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"} <= kinds
    (said,), (again,) = final.content, whole.content
    assert said.type == again.type == "text"
    assert said.text == again.text
    assert (final.stop_reason, final.role, final.model) == (whole.stop_reason, whole.role, whole.model)
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_called_and_its_result_is_sent_back(client: anthropic.Anthropic, choice: Any) -> None:
    asked: Any = {"model": "any", "max_tokens": 500, "tools": [CITIES], "extra_body": {"temperature": 0.0}}
    choice = choice | {"disable_parallel_tool_use": True}
    whole = client.messages.create(messages=HELLO, tool_choice=choice, **asked)
    with client.messages.stream(messages=HELLO, tool_choice=choice, **asked) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == whole.stop_reason == "tool_use"
    (call,), (again,) = message.content, whole.content
    assert call.type == again.type == "tool_use"
    assert (call.name, call.input) == (again.name, again.input)
    assert call.name == "get_weather"
    assert call.input["city"] in ("Paris", "Rome")
    assert call.input["days"] in (1, 2)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns: Any = [*HELLO, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=turns, **asked | {"max_tokens": 4}).usage.output_tokens == 4


def test_a_schema_is_obeyed(client: anthropic.Anthropic) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": CITIES["input_schema"]}}
    message = client.messages.create(**LONG | {"max_tokens": 500}, output_config=config)
    (block,) = message.content
    assert block.type == "text"
    assert block.text.startswith("{")
    assert message.stop_reason == "end_turn"


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert model.type == "model"
    assert model.max_input_tokens == 32_768
    assert client.models.retrieve(model.id) == model
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.type == "not_found_error"


# -- errors and cancels -----------------------------------------------------------------------------------------------


def test_a_stream_helper_that_is_left_is_cancelled(server: ServerProcess, client: anthropic.Anthropic) -> None:
    mine = fresh_id()
    with client.messages.stream(**LONG, **named(mine)) as stream:
        for _ in range(5):
            next(iter(stream))
    assert server.wait_for(mine, status="cancelled")["cancel_reason"] == "disconnect"


def test_a_superseded_message_is_told_and_not_retried(server: ServerProcess, client: anthropic.Anthropic) -> None:
    old, new, key = fresh_id(), fresh_id(), fresh_id()

    def ask_old() -> None:
        client.messages.create(**LONG, timeout=60, **named(old, key))

    def ask_new() -> None:
        client.messages.create(**SHORT, **named(new, key))

    error = superseded(server, key, (old, ask_old), (new, ask_new), anthropic.APIStatusError)
    assert (error.status_code, error.type, error.request_id) == (499, "invalid_request_error", old)


def test_a_cancelled_stream_raises_in_the_middle(server: ServerProcess, client: anthropic.Anthropic) -> None:
    mine = fresh_id()
    with client.messages.stream(**LONG, **named(mine)) as stream:
        next(iter(stream))
        server.http.post(f"/v1/requests/{mine}/cancel")
        with pytest.raises(anthropic.APIStatusError, match="explicit"):
            stream.get_final_message()


def test_a_deadline_is_not_retried(server: ServerProcess, client: anthropic.Anthropic) -> None:
    session = fresh_id()
    body = {"timeout": 0.05, "session_id": session}
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**LONG | {"extra_body": body}, timeout=60)
    assert (caught.value.status_code, caught.value.type) == (504, "timeout_error")
    assert sum(entry["session"] == session for entry in server.http.get("/v1/requests").json()["data"]) == 1
