"""Tools: how they reach the model, what it may answer, and how its calls are told."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support import fake_model
from tests.support.http_world import World, open_world

pytestmark = pytest.mark.anyio

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
HERMES = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
PARIS = '{"city": "Paris"}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + PARIS + "}\n</tool_call>"


class Templated(fake_model.Model):
    def __init__(self, template: str) -> None:
        super().__init__()
        self.chat_template = template  # type: ignore[assignment]


def says(answer: str, template: str = "{{ '' if tools }}<tool_call>{{ messages[-1].content }}") -> Templated:
    """A model with Hermes' form, that answers so to "hello"."""
    model = Templated(template)
    model.answers[template[template.index("<tool_call>") :].partition("{{")[0].encode() + b"hello"] = answer.encode()
    return model


async def message_of(world: World, *, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """The message, put together from all chunks, with its finish reason."""
    exchange = await world.chat(stream=stream, **{"max_tokens": 500} | fields).end()
    assert exchange.status == 200, exchange.body
    if not stream:
        (choice,) = exchange.json()["choices"]
        return choice["message"] | {"finish_reason": choice["finish_reason"]}
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for choice in (json.loads(event)["choices"][0] for event in exchange.events[:-1]):
        assert "finish_reason" not in message, "nothing follows the finish reason"
        message["content"] += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(message["tool_calls"])
                assert delta["function"]["arguments"] == ""
                message["tool_calls"].append(delta)
            else:
                assert set(delta) == {"index", "function"}
                message["tool_calls"][delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        if choice["finish_reason"] is not None:
            message["finish_reason"] = choice["finish_reason"]
    return message


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and arguments of the calls."""
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == len(ids)
    assert all(call["type"] == "function" for call in message["tool_calls"])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]


# -- what is forced ---------------------------------------------------------------------------------------------------


@streaming
@pytest.mark.parametrize("template", [None, HERMES], ids=["generic", "hermes"])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "now"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            },
            {"now"},
        ),
    ],
    ids=["required", "named", "allowed"],
)
async def test_a_call_can_be_forced(template: str | None, choice: Any, names: set[str], stream: bool) -> None:
    async with open_world(model=Templated(template) if template else None) as world:
        for seed in range(3):
            message = await message_of(
                world,
                stream=stream,
                tools=TOOLS,
                tool_choice=choice,
                parallel_tool_calls=False,
                temperature=5,
                seed=seed,
            )
            ((name, arguments),) = called(message)
            assert message["finish_reason"] == "tool_calls"
            assert not message["content"]
            assert name in names
            assert arguments == {} if name == "now" else arguments["city"] in ("Paris", "Rome")


async def test_a_forced_call_that_is_cut_says_so() -> None:
    async with open_world() as world:
        message = await message_of(world, tools=[WEATHER], tool_choice="required", max_tokens=3)
        assert message["finish_reason"] == "length"


async def test_content_is_null_beside_calls() -> None:
    async with open_world() as world:
        message = await message_of(world, tools=TOOLS, tool_choice="required")
        assert message["content"] is None


# -- what the model chooses -------------------------------------------------------------------------------------------


@streaming
@pytest.mark.parametrize("choice", [None, "auto"])
async def test_a_model_that_calls_by_itself(choice: str | None, stream: bool) -> None:
    async with open_world(model=says("I look. " + CALL)) as world:
        message = await message_of(world, stream=stream, tools=TOOLS, tool_choice=choice)
        assert called(message) == [("get_weather", {"city": "Paris"})]
        assert (message["content"], message["finish_reason"]) == ("I look.", "tool_calls")


@streaming
async def test_a_model_that_does_not(stream: bool) -> None:
    async with open_world(model=says("It is 3 < 4. ")) as world:
        message = await message_of(world, stream=stream, tools=TOOLS)
        assert message["content"] == "It is 3 < 4. "
        assert (message.get("tool_calls", []), message["finish_reason"]) == ([], "stop")


async def test_once_a_call_has_begun_it_is_one_of_the_tools() -> None:
    async with open_world(model=says('<tool_call>\n{"name": "get_water", "arguments": {"river": 1}}')) as world:
        ((name, arguments),) = called(await message_of(world, tools=TOOLS, parallel_tool_calls=False, temperature=0))
        assert name == "get_weather"
        assert arguments["city"] in ("Paris", "Rome")


async def test_a_model_without_a_form_of_its_own_calls_in_plain_json() -> None:
    model = Templated("{{ messages[-1].content }}")
    model.answers[b"hello"] = b'{"name": "get_weather", "arguments": ' + PARIS.encode() + b"}"
    async with open_world(model=model) as world:
        assert called(await message_of(world, tools=TOOLS)) == [("get_weather", {"city": "Paris"})]


@streaming
async def test_several_calls(stream: bool) -> None:
    answer = CALL + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    async with open_world(model=says(answer)) as world:
        message = await message_of(world, stream=stream, tools=TOOLS)
        assert called(message) == [("get_weather", {"city": "Paris"}), ("now", {})]


async def test_one_call_if_the_client_wants_no_more() -> None:
    answer = CALL + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    async with open_world(model=says(answer)) as world:
        message = await message_of(world, tools=TOOLS, parallel_tool_calls=False)
        assert called(message) == [("get_weather", {"city": "Paris"})]


async def test_none_is_as_if_there_were_no_tools() -> None:
    async with open_world(model=says(CALL, "{{ 'T' if tools }}<tool_call>{{ messages[-1].content }}")) as world:
        message = await message_of(world, tools=TOOLS, tool_choice="none")
        assert (message["content"], message["finish_reason"]) == (CALL, "stop")


async def test_a_form_of_the_text_binds_the_answers_that_do_not_call() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
    likes = {str(ord(letter)): 50 for letter in "23"}
    async with open_world(model=says("3")) as world:
        message = await message_of(
            world, tools=TOOLS, response_format=form, temperature=0, max_tokens=1, logit_bias=likes
        )
        assert (message["content"], message.get("tool_calls")) == ("2", None)
    async with open_world(model=says(CALL)) as world:
        assert called(await message_of(world, tools=TOOLS, response_format=form)) == [
            ("get_weather", {"city": "Paris"})
        ]


async def test_a_stream_tells_a_call_as_openai_does() -> None:
    async with open_world(model=says(CALL)) as world:
        exchange = await world.chat(tools=TOOLS, stream=True).end()
        first, begins, *fragments, last = [json.loads(event)["choices"][0] for event in exchange.events[:-1]]
        assert first["delta"] == {"role": "assistant", "content": ""}
        (call,) = begins["delta"].pop("tool_calls")
        assert re.fullmatch(r"call_[A-Za-z0-9]{24}", call.pop("id"))
        assert call == {"index": 0, "type": "function", "function": {"name": "get_weather", "arguments": ""}}
        assert all(set(part["delta"]) == {"tool_calls"} for part in fragments)
        assert len(fragments) > 2
        assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


async def test_logprobs_are_those_of_all_that_was_written() -> None:
    async with open_world(model=says(CALL)) as world:
        (choice,) = (await world.chat(tools=TOOLS, logprobs=True).end()).json()["choices"]
        assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == CALL


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
        ({"tools": [NOW, tool("f", parameters={"type": "frob"})]}, "tools[1].function.parameters"),
        ({"tools": [tool("f", parameters={"not": {}}, strict=True)]}, "tools[0].function.parameters"),
        ({"tools": TOOLS, "grammar": 'root ::= "x"'}, "grammar"),
    ],
)
async def test_tools_that_cannot_be_are_named(fields: dict[str, Any], param: str) -> None:
    async with open_world() as world:
        exchange = await world.chat(**fields).end()
        assert (exchange.status, exchange.json()["error"]["param"]) == (400, param), exchange.body


async def test_no_tools_are_no_tools() -> None:
    async with open_world() as world:
        assert (await world.chat(tools=[], tool_choice="auto", max_tokens=1).end()).status == 200
        assert (await world.chat(tools=TOOLS, parallel_tool_calls=True, max_tokens=1).end()).status == 200


async def test_a_schema_that_cannot_be_enforced_is_the_models_own_affair_unless_strict() -> None:
    async with open_world() as world:
        loose = tool("f", parameters={"type": "object", "not": {}})
        assert (await world.chat(tools=[loose], max_tokens=1).end()).status == 200
