"""``response_format``, ``json_schema`` and ``grammar``: the form that an answer must have."""

import json
from typing import Any

import pytest

from pyllmcancel.step import LogitFault
from tests.support.fake_model import NOTHING
from tests.support.http_world import World

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SURE = closed_object({"sure": {"type": "boolean"}, "why": {"enum": ["é", "n"]}})


def schema_format(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", **fields, "schema": schema}}


async def text_of(world: World, *, stream: bool = False, **fields: Any) -> tuple[str, str]:
    exchange = await world.chat(stream=stream, **fields).end()
    assert exchange.status == 200, exchange.body
    if not stream:
        (choice,) = exchange.json()["choices"]
        return choice["message"]["content"], choice["finish_reason"]
    chunks = [json.loads(event)["choices"][0] for event in exchange.events[:-1]]
    return "".join(chunk["delta"].get("content", "") for chunk in chunks), chunks[-1]["finish_reason"]


@streaming
@pytest.mark.parametrize("fields", [{}, {"strict": True}, {"strict": False}, {"strict": None, "description": "x"}])
async def test_a_schema_is_obeyed_whatever_the_model_says(world: World, fields: dict[str, Any], stream: bool) -> None:
    form = schema_format(SURE, **fields)
    for seed in range(3):
        text, reason = await text_of(world, stream=stream, response_format=form, temperature=5, seed=seed)
        answer = json.loads(text)
        assert reason == "stop"
        assert answer["sure"] in (True, False)
        assert answer["why"] in ("é", "n")


async def test_every_choice_obeys_by_itself(world: World) -> None:
    exchange = await world.chat(response_format=schema_format(SURE), n=4, temperature=5, seed=1).end()
    answers = {json.dumps(json.loads(choice["message"]["content"])) for choice in exchange.json()["choices"]}
    assert len(answers) > 1


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_object", "schema": {"type": "object"}},
        {"type": "json_schema", "schema": {"type": "object"}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        {"type": "json_schema", "json_schema": {"name": "with a blank", "schema": {"type": "object"}}},
    ],
)
async def test_any_object(world: World, form: dict[str, Any]) -> None:
    exchange = await world.chat(response_format=form, max_tokens=1, temperature=0).end()
    assert exchange.json()["choices"][0]["message"]["content"] == "{"


async def test_a_form_is_obeyed_in_every_way_that_an_answer_is_asked_for(world: World) -> None:
    (choice,) = (await world.complete(json_schema=SURE, max_tokens=200).end()).json()["choices"]
    assert set(json.loads(choice["text"])) == {"sure", "why"}
    text, reason = await text_of(world, response_format=schema_format(SURE), max_tokens=3)
    assert (text[0], reason) == ("{", "length")
    text, reason = await text_of(world, response_format=schema_format(SURE), ignore_eos=True)
    assert (set(json.loads(text)), reason) == ({"sure", "why"}, "stop"), "it does not go on behind the object"
    free = await text_of(world, max_tokens=5, temperature=0)
    assert await text_of(world, max_tokens=5, temperature=0, response_format={"type": "text"}) == free


async def test_a_neighbours_schema_is_its_own(world: World) -> None:
    alone = await text_of(world, content="free", max_tokens=20, temperature=0)
    bound = world.chat("bound", response_format=schema_format(SURE))
    assert await text_of(world, content="free", max_tokens=20, temperature=0) == alone
    json.loads((await bound.end()).json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": schema_format({"type": "frob"})}, "response_format", "Invalid type: frob"),
        ({"response_format": schema_format({"not": {}}, strict=True)}, "response_format", "not"),
        *(
            ({"response_format": {"type": "json_schema", "json_schema": form}}, "response_format", words)
            for form, words in (
                (SURE, "schema"),
                ({}, "json_schema"),
                ({"name": "answer"}, "schema"),
                ({"name": "answer", "schema": None}, "schema"),
                ({"name": "answer", "shema": SURE}, "schema"),
                ({"schema": SURE, "strikt": True}, "strikt"),
                ({"schema": 1}, "schema"),
            )
        ),
        *(
            ({"response_format": form}, "response_format", words)
            for form, words in (
                ({"type": "json_schema"}, "json_schema"),
                ({"type": "xml"}, "xml"),
                ({"type": "json_schema", "json_schema": {"schema": SURE}, "schema": SURE}, "json_schema"),
                ({"type": "json_schema", "schema": None}, "json_schema"),
                ({"type": "json_schema", "name": "answer", "schema": SURE}, "name"),
                ({"type": "json_object", "json_schema": {"schema": SURE}}, "json_schema"),
                ({"type": "json_object", "response_schema": SURE}, "response_schema"),
                ({"type": "text", "schema": SURE}, "schema"),
                ({"type": "grammar", "grammar": ""}, "grammar"),
                ({"type": "regex"}, "pattern"),
                ({"schema": SURE}, "type"),
                ("json", "response_format"),
            )
        ),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "x"'}, "grammar", "combined"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "json_schema", "response_format"),
        ({"json_schema": {"enum": []}}, "json_schema", "Unsatisfiable"),
        ({"json_schema": {"$ref": "https://example.com/schema.json"}}, "json_schema", "retrieving it failed"),
        ({"json_schema": {"name": "answer", "schema": SURE}}, "json_schema", "itself"),
        ({"guided_json": {"schema": SURE}}, "guided_json", "itself"),
        ({"format": schema_format(SURE)}, "format", "itself"),
        ({"grammar": "no grammar"}, "grammar", "parsed"),
        ({"grammar": NOTHING}, "grammar", ""),  # for llama.cpp's sampler to say
        ({"response_format": schema_format(SURE), "allowed_token_ids": [7, 8]}, None, ""),
    ],
)
async def test_a_form_that_is_none_is_refused(
    world: World, fields: dict[str, Any], param: str | None, words: str
) -> None:
    exchange = await world.chat(**fields).end()
    assert exchange.status == 400, exchange.body
    error = exchange.json()["error"]
    assert words in error["message"]
    assert error["param"] == param if param else error["code"] == "invalid_request"
    if words:  # the others are refused in their first step
        assert await world.requests() == []


async def test_a_schema_that_cannot_be_enforced_is_passed_over_if_it_is_not_meant_strictly(world: World) -> None:
    schema = SURE | {"not": {"required": ["x"]}}
    assert json.loads((await text_of(world, response_format=schema_format(schema, strict=False)))[0])


@streaming
async def test_a_grammar_that_is_too_ambiguous_is_an_error_of_the_grammar_field(world: World, stream: bool) -> None:
    world.context.faults[tuple(b"hello")] = LogitFault.TOO_COMPLEX
    exchange = await world.complete("hello", stream=stream, grammar='root ::= "x"').end()
    answer = json.loads(exchange.events[-1]) if stream else exchange.json()
    assert exchange.status == (200 if stream else 400)
    assert (answer["error"]["param"], answer["error"]["code"]) == ("grammar", "invalid_request")
    assert "ambiguous" in answer["error"]["message"]
    assert answer["usage"]["completion_tokens"] == 0
    if not stream:
        assert exchange.headers["x-should-retry"] == "false"


async def test_a_schema_that_exceeds_a_limit_in_mid_answer_is_an_error_of_its_field(world: World) -> None:
    alternatives = [closed_object({f"k{n}": {"type": "string"}}) for n in range(3_000)]
    schema = closed_object({"a": {"anyOf": alternatives}})
    exchange = await world.chat(response_format=schema_format(schema)).end()
    assert exchange.status == 400, exchange.body
    assert exchange.json()["error"]["param"] == "response_format"
    assert exchange.json()["usage"]["completion_tokens"] > 0
