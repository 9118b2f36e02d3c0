"""``POST /v1/responses``: what is asked of the model, and how it is told, as OpenAI's client reads it."""

import json
from typing import Any

import pytest

from tests.support.chat_models import CALL, PARIS, Says
from tests.support.http_world import CHAT, World, open_world
from tests.support.responses import RESPONSES, accumulated, checked, checked_events, output_of

CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
CITY |= {"required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
NAMED = {"type": "function", "name": "get_weather"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
HELLO = {"role": "user", "content": "hello"}
ECHO = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


async def answer(world: World, **fields: Any) -> dict[str, Any]:
    exchange = await world.served(RESPONSES, {"input": "hello", "max_output_tokens": 200} | fields)
    return checked(exchange.json())


async def stream(world: World, **fields: Any) -> list[dict[str, Any]]:
    exchange = await world.served(RESPONSES, {"input": "hello", "max_output_tokens": 200, "stream": True} | fields)
    return checked_events(exchange)


# -- the answer -------------------------------------------------------------------------------------------------------


async def test_a_text_is_answered_with_a_message_and_a_stream_is_the_same_in_events() -> None:
    async with open_world(model=Says("It is 4.")) as world:
        whole = await answer(world, metadata={"a": "b"}, user="me")
        (message,) = whole["output"]
        assert (whole["status"], whole["incomplete_details"], whole["error"]) == ("completed", None, None)
        assert whole["completed_at"] >= whole["created_at"]
        assert message["content"] == [{"type": "output_text", "text": "It is 4.", "annotations": [], "logprobs": []}]
        assert (message["role"], message["status"]) == ("assistant", "completed")
        assert (whole["metadata"], whole["user"]) == ({"a": "b"}, "me")
        assert whole["usage"]["output_tokens"] > 0
        events = await stream(world, metadata={"a": "b"}, user="me")
        kinds = [event["type"].removeprefix("response.") for event in events[:4]]
        assert kinds == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert accumulated(events).output_text == "It is 4."
        told = events[-1]["response"]
        assert told["output"] == output_of(events)
        assert [item["content"] for item in told["output"]] == [item["content"] for item in whole["output"]]
        differ = {key for key in told if told[key] != whole[key]}
        assert differ <= {"id", "created_at", "completed_at", "output", "usage"}


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_is_cut_is_incomplete(world: World, streams: bool) -> None:
    fields = {"max_output_tokens": 3, "temperature": 0}
    found = (await stream(world, **fields))[-1] if streams else {"response": await answer(world, **fields)}
    response = found["response"]
    assert found.get("type", "response.incomplete") == "response.incomplete"
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["usage"]["output_tokens"] == 3


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("reason", "status"),
    [("explicit", "cancelled"), ("superseded", "cancelled"), ("deadline", "failed"), ("shutdown", "failed")],
)
async def test_an_answer_that_breaks_off_does_not_look_complete(
    world: World, reason: str, status: str, *, streams: bool
) -> None:
    world.hold()
    body = {"input": "hello", "stream": streams, "supersede": "key"}
    asked = world.begin("POST", RESPONSES, body, headers={"x-request-id": "mine"})
    await world.held()
    await world.bring_about(reason)
    await world.cancelling("mine")
    world.gate.open()
    await asked.end()
    if not streams:
        assert asked.failure == ({"deadline": 504, "shutdown": 503}.get(reason, 499), reason)
        return
    error, last = checked_events(asked)[-2:]
    response = last["response"]
    assert (error["type"], error["code"]) == ("error", reason)
    assert (last["type"], response["status"], response["id"]) == ("response.failed", status, "resp_mine")
    assert response["error"]["message"] == error["message"]
    assert accumulated(checked_events(asked)) is None


async def test_logprobs_are_of_the_text() -> None:
    async with open_world(model=Says("It is 4.")) as world:
        fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        (item,) = (await answer(world, **fields))["output"]
        (part,) = item["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == "It is 4."
        assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
        events = await stream(world, **fields)
        deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
        assert [entry for entries in deltas for entry in entries] == part["logprobs"]


# -- reasoning --------------------------------------------------------------------------------------------------------


async def test_reasoning_is_an_item_of_its_own() -> None:
    async with open_world(model=Says("<think>Two and two.</think>It is 4.")) as world:
        found = await answer(world)
        reasoning, message = found["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Two and two."}]
        assert (reasoning["type"], reasoning["summary"], "encrypted_content" in reasoning) == ("reasoning", [], False)
        assert message["content"][0]["text"] == "It is 4."
        usage = found["usage"]
        assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
        events = await stream(world)
        assert [item["content"] for item in output_of(events)] == [item["content"] for item in found["output"]]
        assert accumulated(events).output_text == "It is 4."


async def n_tokens_of(world: World, *messages: dict[str, Any]) -> int:
    """Return the length of the prompt of a chat with these messages."""
    plain = await world.served(f"{CHAT}/input_tokens", {"messages": list(messages)})
    return int(plain.json()["input_tokens"])


async def test_reasoning_comes_back_as_it_was_given() -> None:
    model = Says("<think>Two and two.</think>It is 4.")
    async with open_world(model=model) as world:
        fields = {"include": ["reasoning.encrypted_content"], "store": False}
        reasoning, message = (await answer(world, **fields))["output"]
        assert reasoning["encrypted_content"]
    async with open_world(model=model) as world:
        kept = {key: value for key, value in reasoning.items() if key != "content"}
        again = await world.post(f"{RESPONSES}/input_tokens", {"input": [HELLO, kept, message]})
        said = {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."}
        assert again.json()["input_tokens"] == await n_tokens_of(world, HELLO, said)
        others = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3RoZXI="}
        exchange = await world.served(RESPONSES, {"input": [others, HELLO], "max_output_tokens": 1})
        assert exchange.headers["x-ignored-fields"] == "input.reasoning"


# -- tools ------------------------------------------------------------------------------------------------------------


async def test_a_call_is_an_item() -> None:
    async with open_world(model=Says("I look. " + CALL)) as world:
        found = await answer(world, tools=[WEATHER])
        message, call = found["output"]
        assert message["content"][0]["text"] == "I look. "
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", PARIS)
        assert found["tools"] == [WEATHER]
        events = await stream(world, tools=[WEATHER])
        assert [item["type"] for item in output_of(events)] == ["message", "function_call"]
        assert accumulated(events).output[1].arguments == call["arguments"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_custom_tool_is_called_with_one_text_and_one_of_a_namespace_by_both_names(streams: bool) -> None:
    called = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** \\"Begin\\"\\n+é"}}\n</tool_call>'
    async with open_world(model=Says(called)) as world:
        events = await stream(world, tools=[WEATHER, PATCH]) if streams else []
        (call,) = output_of(events) if streams else (await answer(world, tools=[WEATHER, PATCH]))["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", '*** "Begin"\n+é')
        assert ("response.custom_tool_call_input.done" in [event["type"] for event in events]) == streams
    async with open_world(model=Says(CALL.replace("get_weather", "sky__get_weather"))) as world:
        tools = [{"type": "namespace", "name": "sky", "description": "Above.", "tools": [WEATHER]}]
        (call,) = (await answer(world, tools=tools))["output"]
        assert (call["namespace"], call["name"]) == ("sky", "get_weather")


@pytest.mark.parametrize("choice", ["required", NAMED, {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}])
async def test_a_call_is_asked_for(choice: Any) -> None:
    async with open_world(model=Says(CALL)) as world:
        found = await answer(world, tools=[WEATHER], tool_choice=choice)
        (call,) = found["output"]
        assert json.loads(call["arguments"]) == {"city": "Paris"}
        assert found["tool_choice"] == choice


async def test_hosted_tools_are_ignored_beside_the_clients_own(world: World) -> None:
    hosted: list[dict[str, Any]] = [
        {"type": "web_search", "external_web_access": True},
        {"type": "file_search", "vector_store_ids": ["v"]},
        {"type": "mcp", "server_label": "m"},
        *({"type": kind} for kind in ("computer", "shell")),
    ]
    exchange = await world.served(RESPONSES, {"input": "hello", "tools": [WEATHER, *hosted], "max_output_tokens": 1})
    assert exchange.headers["x-ignored-fields"] == ", ".join(f"tools[{n}]" for n in range(1, 6))
    assert checked(exchange.json())["tools"] == [WEATHER, *hosted]


async def test_a_schema_shapes_the_text(world: World) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    found = await answer(world, text=text, temperature=5)
    assert json.loads(found["output"][0]["content"][0]["text"])["a"] in (1, 2)
    assert found["text"]["format"] == text["format"]


# -- the conversation -------------------------------------------------------------------------------------------------


async def test_items_become_the_messages_of_a_chat(world: World) -> None:
    call = {"name": "get_weather", "arguments": PARIS}
    answered = {"type": "output_text", "text": "Sun.", "annotations": []}
    asked: Any = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "id": "m", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "id": "f", "call_id": "c", "status": "completed"} | call,
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Sun."}]},
        {"type": "message", "role": "assistant", "content": [answered]},
        HELLO,
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You help."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": "Sun."},
        {"role": "assistant", "content": "Sun."},
        HELLO,
    ]
    counted = await world.post(f"{RESPONSES}/input_tokens", {"input": asked, "instructions": "You help."})
    n_tokens = await n_tokens_of(world, *messages)
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": n_tokens}


# -- what is refused --------------------------------------------------------------------------------------------------


SEARCH = {"type": "web_search"}
SCHEMA = {"type": "json_schema", "name": "x"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "nothing"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input", "nothing"),
        ({"input": [{"type": "smell"}]}, "input", "smell"),
        ({"tools": [WEATHER, SEARCH], "tool_choice": SEARCH}, "tool_choice", "web_search"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "x"),
        ({"tools": [SEARCH, WEATHER, WEATHER]}, "tools[2].name", "get_weather"),
        ({"include": ["file_search_call.results"]}, "include[0]", "file_search_call.results"),
        ({"conversation": "c"}, "conversation", "unsupported"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater"),
        ({"metadata": {"a": 1}}, "metadata", "string"),
        ({"text": {"format": SCHEMA | {"schema": {"type": "x"}, "strict": True}}}, "text.format", "x"),
        ({"text": {"format": {"type": "json_object", "schema": {"enum": [1]}}}}, "text", "schema"),
        ({"text": {"format": SCHEMA | {"json_schema": {"enum": [1]}}}}, "text", "schema"),
        ({"text": {"fromat": {"type": "json_object"}}}, "text", "fromat"),
        ({"input": "hello " * 2000}, "input", "tokens"),
    ],
)
async def test_what_cannot_be_served_is_refused(world: World, fields: dict[str, Any], param: str, words: str) -> None:
    exchange = await world.post(RESPONSES, {"input": "hello"} | fields)
    error = exchange.json()["error"]
    assert (exchange.status, error["param"]) == (400, param), error
    assert words in error["message"]
    assert await world.requests() == []


async def test_an_effort_that_the_model_knows_nothing_of_is_passed_over() -> None:
    async with open_world(model=Says("x", ECHO)) as world:
        body = {"input": "hello", "max_output_tokens": 1, "reasoning": {"effort": "high", "summary": "auto"}}
        assert (await world.served(RESPONSES, body)).headers["x-ignored-fields"] == "reasoning.effort"
