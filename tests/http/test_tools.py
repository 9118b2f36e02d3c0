"""Tools: how they reach the model, what it may answer, how its calls are told, and schemas that no grammar follows."""

import json
import re
from typing import Any

import pytest

from tests.support.chat_models import CALL, HERMES, Says
from tests.support.http_world import World, open_world

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def tool(name: str, properties: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties or {},
        "required": list(properties or {}),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters} | fields}


WEATHER = tool("get_weather", {"city": {"enum": ["Paris", "Rome"]}}, description="Today's weather.")
NOW = tool("now")
TOOLS = [WEATHER, NOW]


async def message_of(world: World, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    exchange = await world.chat(stream=stream, **{"max_tokens": 500} | fields).end()
    assert exchange.status == 200, exchange.body
    if not stream:
        (choice,) = exchange.json()["choices"]
        return choice["message"] | {"finish_reason": choice["finish_reason"]}
    message: dict[str, Any] = {"content": "", "tool_calls": [], "finish_reason": None}
    for (choice,) in (event["choices"] for event in exchange.json_events()):
        assert message["finish_reason"] is None, "nothing follows the finish reason"
        message["finish_reason"] = choice["finish_reason"]
        message["content"] += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(message["tool_calls"])
                assert delta["function"]["arguments"] == ""
                message["tool_calls"].append(delta)
            else:
                assert set(delta) == {"index", "function"}
                message["tool_calls"][delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return message


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["type"] == "function" for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


# -- what the model chooses -------------------------------------------------------------------------------------------


PARIS = ("get_weather", {"city": "Paris"})
CALL_NOW = '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@streaming
@pytest.mark.parametrize(
    ("said", "choice", "content", "calls"),
    [
        ("I look. " + CALL, None, "I look. ", [PARIS]),
        ("I look. " + CALL, "auto", "I look. ", [PARIS]),
        ("It is 3 < 4. ", None, "It is 3 < 4. ", []),
        (CALL + CALL_NOW, None, "", [PARIS, ("now", {})]),
        (CALL, "none", CALL, []),
    ],
)
async def test_a_model_calls_by_itself_or_does_not(
    said: str, choice: str | None, content: str, calls: list[Any], *, stream: bool
) -> None:
    async with open_world(model=Says(said)) as world:
        message = await message_of(world, stream=stream, tools=TOOLS, tool_choice=choice)
        assert (message["content"] or "", message["finish_reason"]) == (content, "tool_calls" if calls else "stop")
        assert called(message) == calls


@streaming
@pytest.mark.parametrize(
    "spoilt", ['<tool_call>\n{"name": 7}', '<tool_call>\n{"name": "get_weather", "arguments": [', "<tool_call>"]
)
async def test_what_is_no_call_is_text_or_a_call_with_what_came(spoilt: str, stream: bool) -> None:
    async with open_world(model=Says("Well. " + spoilt)) as world:
        message = await message_of(world, stream=stream, tools=TOOLS)
        assert message["content"].startswith("Well. ")
        calls = message.get("tool_calls") or []
        told = message["content"] + "".join(call["function"]["name"] + call["function"]["arguments"] for call in calls)
        assert (spoilt in message["content"]) or "get_weather" in told


async def test_a_form_of_the_text_binds_the_answers_that_do_not_call() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    likes = {str(ord(letter)): 50 for letter in "23"}
    async with open_world(model=Says("3")) as world:
        fields = {"temperature": 0, "max_tokens": 1, "logit_bias": likes}
        message = await message_of(world, tools=TOOLS, response_format=form, **fields)
        assert (message["content"], message.get("tool_calls")) == ("2", None)
    async with open_world(model=Says(CALL)) as world:
        assert called(await message_of(world, tools=TOOLS, response_format=form)) == [PARIS]


async def test_a_stream_tells_a_call_as_openai_does() -> None:
    async with open_world(model=Says(CALL)) as world:
        exchange = await world.chat(tools=TOOLS, stream=True).end()
        first, begins, *fragments, last = [json.loads(event)["choices"][0] for event in exchange.events[:-1]]
        assert first["delta"] == {"role": "assistant", "content": ""}
        (call,) = begins["delta"].pop("tool_calls")
        assert re.fullmatch(r"[A-Za-z0-9]{9}", call.pop("id"))
        assert call == {"index": 0, "type": "function", "function": {"name": "get_weather", "arguments": ""}}
        assert all(set(part["delta"]) == {"tool_calls"} for part in fragments)
        assert len(fragments) > 2
        assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


async def test_logprobs_are_those_of_all_that_was_written() -> None:
    async with open_world(model=Says(CALL)) as world:
        (choice,) = (await world.chat(tools=TOOLS, logprobs=True).end()).json()["choices"]
        assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == CALL
        assert not any(entry["top_logprobs"] for entry in choice["logprobs"]["content"]), "none was asked for"


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [tool("has blanks in it")]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
        ({"tools": [tool("f", parameters={"not": {}}, strict=True)]}, "tools[0].function.parameters"),
        ({"tools": TOOLS, "grammar": 'root ::= "x"'}, "grammar"),
        ({"tools": [], "tool_choice": "auto"}, None),
        ({"tools": TOOLS, "parallel_tool_calls": True}, None),
    ],
)
async def test_tools_that_cannot_be_are_named(world: World, fields: dict[str, Any], param: str | None) -> None:
    exchange = await world.chat(max_tokens=1, **fields).end()
    assert exchange.status == 200 if param is None else exchange.refusal == (400, param)


# -- what is told -----------------------------------------------------------------------------------------------------


# As Qwen3-Coder writes calls: a text stands as it is.
TAGGED = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role[0] }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for key, value in c.function.arguments | items %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|e|>{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}"
)


async def test_texts_that_a_model_writes_as_they_are_are_told_even_if_strict() -> None:
    city = {"type": "string", "enum": ["Paris", "Rome"]}
    async with open_world(model=Says("x", TAGGED)) as world:
        exchange = await world.chat(tools=[tool("f", {"city": city}, strict=True)], max_tokens=1).end()
        assert exchange.status == 200, exchange.body
        assert exchange.headers["x-unenforced"] == "tools[0].function.parameters.properties.city.enum"


async def test_more_tools_than_a_grammar_holds_are_called_as_the_model_likes() -> None:
    properties = {f"a long name of an argument, number {n}": {"type": "string"} for n in range(60)}
    many = [WEATHER, *(tool(f"f{n}", properties) for n in range(100))]
    names = HERMES.replace("{{ tools | tojson }}", "{% for t in tools %}{{ t.function.name }}{% endfor %}")
    async with open_world(model=Says(CALL, names)) as world:
        exchange = await world.chat(tools=many).end()
        assert exchange.status == 200, exchange.body
        assert exchange.headers["x-unenforced"] == "tools"
        assert called(exchange.json()["choices"][0]["message"]) == [("get_weather", {"city": "Paris"})]


# -- schemas that no grammar follows -----------------------------------------------------------------------------------


TREE = {"type": "object", "properties": {"label": {"type": "string"}, "kids": {"items": {"$ref": "#"}}}}
LACKING = {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"not": {}}}}
HELLO = [{"role": "user", "content": "hi"}]


def body_of(path: str, schema: Any, **fields: Any) -> dict[str, Any]:
    tool = {"name": "t"} | fields
    if path == "/v1/responses":
        tools: list[Any] = [{"type": "web_search"}, {"type": "function", "parameters": schema} | tool]
        return {"input": "hi", "tools": tools, "max_output_tokens": 1}
    is_chat = path == "/v1/chat/completions"
    tools = [
        {"type": "function", "function": tool | {"parameters": schema}} if is_chat else tool | {"input_schema": schema}
    ]
    return {"messages": HELLO, "tools": tools} | ({} if path.endswith("count_tokens") else {"max_tokens": 1})


PLACES = {
    "/v1/chat/completions": "tools[0].function.parameters",
    "/v1/messages": "tools[0].input_schema",
    "/v1/responses": "tools[1].parameters",
}


@pytest.mark.parametrize("path", [*PLACES, "/v1/messages/count_tokens"])
@pytest.mark.parametrize("schema", [True, TREE, {"type": "object", "properties": {"extra": True}}], ids=str)
async def test_what_a_grammar_follows_is_served(world: World, path: str, schema: Any) -> None:
    exchange = await world.post(path, body_of(path, schema))
    assert (exchange.status, exchange.headers.get("x-unenforced")) == (200, None), exchange.body


@pytest.mark.parametrize(("path", "place"), PLACES.items())
async def test_what_none_follows_is_named_as_the_api_does_and_refused_if_it_is_strict(
    world: World, path: str, place: str
) -> None:
    exchange = await world.post(path, body_of(path, LACKING))
    assert (exchange.status, exchange.headers.get("x-unenforced")) == (200, f"{place}.$defs.y.not")
    assert (await world.post(path, body_of(path, LACKING, strict=True))).refusal == (400, place)


async def test_tokens_are_counted_whatever_the_schema_is(world: World) -> None:
    path = "/v1/messages/count_tokens"
    assert (await world.post(path, body_of(path, LACKING, strict=True))).status == 200


async def test_parameters_that_are_no_schema_are_named(world: World) -> None:
    path = "/v1/chat/completions"
    exchange = await world.post(path, body_of(path, "a text"))
    assert exchange.status == 400
    assert "tools.0.function.parameters" in exchange.json()["error"]["message"]


async def test_what_the_texts_schema_lacks_is_named_beside_much_of_the_tools(world: World) -> None:
    path = "/v1/chat/completions"
    schemas = [{"type": "object", "properties": {f"p{k}": {"not": {}} for k in range(n)}} for n in (20, 1)]
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schemas[1]}}
    exchange = await world.post(path, body_of(path, schemas[0]) | {"response_format": form})
    assert exchange.headers["x-unenforced"].split(", ")[16:] == ["response_format.properties.p0.not"]
