"""Null, and nothing where something would be needed, mean "not given": in every optional field of every body."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError

from pyllmcancel.server.anthropic.body import CountBody, MessagesBody
from pyllmcancel.server.batches.wire import BatchBody, UploadBody
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.embeddings.body import EmbeddingBody, LlamaEmbeddingBody
from pyllmcancel.server.embeddings.ranking import RankBody
from pyllmcancel.server.llama.body import DetokenizeBody, InfillBody, LlamaCompletionBody, SlotFileBody, TokenizeBody
from pyllmcancel.server.openai.completion_body import CompletionBody
from pyllmcancel.server.openai.transcriptions import TranscriptionBody
from pyllmcancel.server.requests.routes import CancelBody
from pyllmcancel.server.responses.body import ResponsesBody
from pyllmcancel.server.streams.routes import LookupBody
from pyllmcancel.server.wire.fields import RequestBody, Sent, wire_fields
from pyllmcancel.server.wire.generation import LoraScalesBody
from tests.support.endpoints import body_type_of
from tests.support.http_world import World

SCHEMA: dict[str, Any] = {"type": "object"}
TEXT = {"type": "text", "text": "x"}
USER = {"role": "user", "content": "x"}
NAMED: dict[str, Any] = {"type": "function", "name": "f"}
FUNCTION = {"type": "function", "function": {"name": "f"}}


def said(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def form(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind} | fields


# Bodies that have, between them, everything that a body may have inside it.
CALL = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}
CHATS: list[dict[str, Any]] = [
    {
        "messages": [said(TEXT), CALL],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": FUNCTION,
        "response_format": form("json_schema", json_schema={"name": "x", "schema": SCHEMA}),
        "stream_options": {"include_usage": True},
        "reasoning": {"effort": "low"},
        "thinking": {"type": "enabled"},
        "options": {"num_predict": 1},
        "lora": [{"id": 0, "scale": 1}],
        "prompt_cache_options": {},
        "structured_outputs": {},
    },
    {"tool_choice": form("allowed_tools", allowed_tools={"mode": "auto", "tools": [FUNCTION]})},
    {"messages": [said(form("image_url", image_url={"url": "x"}), form("input_audio", input_audio={"data": "x"}))]},
    {"prediction": form("content", content=[TEXT])},
    *(
        {"response_format": one}
        for one in (
            *(form("text"), form("json_object", schema=SCHEMA), form("json_schema", schema=SCHEMA)),
            *(form("regex", pattern="x"), form("grammar", grammar="x")),
        )
    ),
]
IMAGES: list[dict[str, Any]] = [{"type": "base64", "media_type": "image/png", "data": "AAAA"}]
IMAGES += [{"type": "url", "url": "https://example.org/a.png"}]
TURNS: list[dict[str, Any]] = [
    said(
        TEXT,
        form("document", source={"type": "text", "data": "x"}),
        form("document", source={"type": "content", "content": [TEXT]}),
        form("search_result", title="x", source="x", content=[TEXT]),
        *(form("image", source=source) for source in IMAGES),
        form("tool_result", tool_use_id="x", content=[TEXT, form("tool_reference", tool_name="x")]),
    ),
    said(
        *(form(kind, id="x", name="x", input={}) for kind in ("tool_use", "server_tool_use")),
        form("thinking", thinking="x"),
        role="assistant",
    ),
]
MESSAGES: list[dict[str, Any]] = [
    {
        "messages": TURNS,
        "system": [TEXT],
        "tools": [{"name": "x", "input_schema": SCHEMA}, form("bash_20250124", name="bash")],
        "tool_choice": form("auto"),
        "thinking": form("adaptive"),
        "metadata": {"user_id": "x"},
        "output_config": {"format": form("json_schema", schema=SCHEMA)},
    },
    {"tool_choice": form("tool", name="x"), "thinking": form("enabled", budget_tokens=1)},
    {"tool_choice": form("none")},
]
ITEMS = [
    said(form("input_text", text="x"), form("input_image", image_url="x")),
    said(form("input_audio", input_audio={"data": "x"})),
    form("function_call", call_id="x", name="f", arguments="{}"),
    form("custom_tool_call", call_id="x", name="f", input="x"),
    form("function_call_output", call_id="x", output="x"),
    form("reasoning", summary=[form("summary_text", text="x")]),
    form("reasoning", content=[form("reasoning_text", text="x")]),
    form("item_reference", id="x"),
    form("web_search_call", id="x", action=form("search", query="x")),
    form("tool_search_output", tools=[NAMED]),
]
RESPONSES: list[dict[str, Any]] = [
    {
        "input": ITEMS,
        "tools": [
            *(NAMED, form("custom", name="f", format={"type": "text"}), form("namespace", name="n", tools=[NAMED])),
            *(form("tool_search", execution="client"), form("web_search")),
        ],
        "tool_choice": NAMED,
        "text": {"format": form("text")},
        "reasoning": {"effort": "low"},
        "stream_options": {},
    },
    {"tool_choice": form("allowed_tools", mode="auto", tools=[NAMED]), "text": {"format": form("json_object")}},
    {"text": {"format": form("json_schema", name="x", schema=SCHEMA)}},
]
BODIES: dict[type[RequestBody], list[dict[str, Any]]] = {
    ChatBody: [{"messages": [USER]} | one for one in CHATS],
    CompletionBody: [{"prompt": "x"}],
    TranscriptionBody: [{"file": b"RIFF"}],
    MessagesBody: [{"messages": [USER], "max_tokens": 1} | one for one in MESSAGES],
    CountBody: [{"messages": [USER]} | one for one in MESSAGES],
    ResponsesBody: [{"input": "x"} | one for one in RESPONSES],
    EmbeddingBody: [{"input": {"prompt_string": "x"}}, {"input": [{"content": [TEXT]}]}],
    LookupBody: [{"conversation_ids": ["x"]}],
    LlamaEmbeddingBody: [{"input": {"prompt_string": "x"}}],
    RankBody: [{"query": "x", "documents": ["x", {"text": "x"}]}, {"query": "x", "texts": ["x"]}],
    LlamaCompletionBody: [{"prompt": {"prompt_string": "x"}}],
    InfillBody: [{"input_prefix": "x", "input_suffix": "x", "input_extra": [{"text": "x"}]}],
    TokenizeBody: [{}],
    DetokenizeBody: [{}],
    CancelBody: [{"session": "x"}],
    UploadBody: [{"file": b"{}", "purpose": "batch"}],
    BatchBody: [{"input_file_id": "x", "endpoint": "/v1/completions"}],
}
LISTS: set[type[RequestBody]] = {LoraScalesBody}  # bodies without fields
# An endpoint reads it only if it needs one.
FURTHER: dict[type[RequestBody], list[dict[str, Any]]] = {SlotFileBody: [{"filename": "x"}]}
CASES = [
    pytest.param(kind, body, id=f"{kind.__name__} {n}")
    for kind, bodies in (BODIES | FURTHER).items()
    for n, body in enumerate(bodies)
]


def inside(model: Sent, sent: Any) -> Iterator[tuple[type[Sent], dict[str, Any]]]:
    """Iterate over the parts of a body: each model with the dictionary that it was made of."""
    yield type(model), sent
    for name, field in type(model).model_fields.items():
        wire_name = str(field.validation_alias or name)
        if isinstance(sent, dict) and wire_name in sent:
            yield from within(getattr(model, name), sent[wire_name])


def within(value: Any, sent: Any) -> Iterator[tuple[type[Sent], dict[str, Any]]]:
    if isinstance(value, Sent) and isinstance(sent, dict):  # a text may stand for a part
        yield from inside(value, sent)
    elif isinstance(value, list) and isinstance(sent, list):
        for one, sent_one in zip(value, sent, strict=True):
            yield from within(one, sent_one)


def optional(kind: type[Sent]) -> list[str]:
    return [name for name, field in wire_fields(kind).items() if not field.is_required() and name not in kind.null_says]


@pytest.mark.parametrize(("kind", "body"), CASES)
def test_null_is_as_good_as_nothing(kind: type[RequestBody], body: dict[str, Any]) -> None:
    """In one place after the other of a body, and of all that it has inside it."""
    wrong = []
    for model, place in inside(kind.model_validate(body), body):
        for name in [*optional(model), "a_field_that_there_is_not"]:
            kept = place.pop(name, None)
            without = outcome(kind, body)
            place[name] = None
            if outcome(kind, body) != without:
                wrong.append(f"{model.__name__}.{name}")
            del place[name]
            if kept is not None:
                place[name] = kept
    assert wrong == []


def outcome(kind: type[RequestBody], body: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        return [(one["type"], one["loc"]) for one in error.errors()]


def test_the_bodies_have_everything_inside_them() -> None:
    seen = {
        model
        for kind, bodies in (BODIES | FURTHER).items()
        for body in bodies
        for model, _ in inside(kind.model_validate(body), body)
    }
    missing = {kind.__name__ for kind in kinds(Sent) if kind not in seen | LISTS and not kind.__subclasses__()}
    assert missing == set()


def kinds(kind: type[Sent]) -> Iterator[type[Sent]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds(one)


def test_every_endpoint_is_among_them() -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("pyllmcancel.server.")]
    routers = [router for module in modules if isinstance(router := getattr(module, "router", None), APIRouter)]
    endpoints = [route.endpoint for router in routers for route in router.routes if isinstance(route, APIRoute)]
    found = {body_type_of(endpoint) for endpoint in endpoints}
    assert found - {None} == set(BODIES) | LISTS


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatBody, {"tool_choice": {}, "response_format": {}, "max_tokens": "", "guided_choice": []}),
        (ChatBody, {"tool_choice": "", "tools": {}}),
        (CompletionBody, dict.fromkeys(("session_id", "parent_session_id", "supersede", "prompt_cache_key"), "")),
        (MessagesBody, {"thinking": {}, "system": {}}),
        (ResponsesBody, {"previous_response_id": "", "reasoning": ""}),
        (EmbeddingBody, {"encoding_format": ""}),
        (InfillBody, {"n_predict": ""}),
    ],
)
def test_empty_is_not_given_where_nothing_empty_is_a_value(kind: type[RequestBody], fields: dict[str, Any]) -> None:
    for field, empty in fields.items():
        body = BODIES[kind][-1]
        without = kind.model_validate({name: value for name, value in body.items() if name != field})
        assert kind.model_validate(body | {field: empty}) == without, field


@pytest.mark.parametrize(
    ("field", "empty"), [("grammar", ""), ("stop", []), ("json_schema", {}), ("tools", []), ("stop", "")]
)
def test_what_is_empty_stays_where_it_is_a_value(field: str, empty: Any) -> None:
    assert getattr(ChatBody.model_validate({"messages": [USER], field: empty}), field) == empty


@pytest.mark.parametrize(
    ("kind", "body"),
    [(ChatBody, {"messages": value}) for value in (None, [{"role": None}], [], "")]
    + [(CancelBody, {"request_ids": [], "session": "x"})],  # a filter that came out empty is none to leave out
)
def test_what_is_required_stays_required(kind: type[RequestBody], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(body)


@pytest.mark.parametrize("empty", ["", None])
def test_a_call_may_say_nothing_of_its_id_and_type_and_a_custom_one_is_of_one_text(empty: Any) -> None:
    function = {"name": "f", "arguments": '{"input": "x"}'}
    plain = {"id": empty, "type": empty, "function": function}
    custom = {"id": empty, "type": "custom", "custom": {"name": "f", "input": "x"}}
    (message,) = ChatBody.model_validate({"messages": [CALL | {"tool_calls": [plain, custom]}]}).messages
    assert message.for_template()["tool_calls"] == [{"id": "", "type": "function", "function": function}] * 2


def test_null_says_that_a_completion_has_no_limit() -> None:
    assert CompletionBody.model_validate({"prompt": "x", "max_tokens": None}).most_tokens is None
    assert CompletionBody.model_validate({"prompt": "x"}).most_tokens == 16


async def test_a_null_that_a_template_could_see_is_not_there(world: World) -> None:
    body = {"messages": [USER | {"name": None}], "chat_template_kwargs": {"enable_thinking": None}}
    shown = (await world.post("/apply-template", body)).json()
    assert shown == (await world.post("/apply-template", {"messages": [USER]})).json()
