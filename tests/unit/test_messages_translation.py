"""The translation of a Messages body: the chat that is rendered for the model."""

import typing
from typing import Any

import anthropic.types.beta as anthropic_types
import openai.types.responses as openai_types
import pytest

from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.server.anthropic.body import MessagesBody
from pyllmcancel.server.anthropic.translation import chat_of
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.body import ResponsesBody
from pyllmcancel.server.responses.input_items import KINDS, kept
from tests.support.client_types import variants

USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Today's.", "input_schema": SCHEMA}


def chat(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return chat_of(MessagesBody.model_validate({"max_tokens": 9, "messages": messages or [USER]} | fields))


def shown(body: ChatBody) -> list[dict[str, Any]]:
    return [message.for_template() for message in body.messages]


def texts(*blocks: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}} for text in blocks]


def test_texts_and_blocks_of_texts_become_messages_in_their_order() -> None:
    body = chat(USER, *({"role": role, "content": texts("a", "b")} for role in ("assistant", "system", "user")))
    contents = {"assistant": "ab", "system": "a\nb", "user": "a\nb"}
    assert shown(body) == [USER, *({"role": role, "content": content} for role, content in contents.items())]


CLAUDE_CODE = "x-anthropic-billing-header: cc_version=1; cch=a5145;"  # for its own server, and no part of the prompt


@pytest.mark.parametrize("system", ["one\ntwo", texts("one", "two"), texts(CLAUDE_CODE, "one", "two")])
def test_the_system_comes_first(system: Any) -> None:
    assert shown(chat(system=system)) == [{"role": "system", "content": "one\ntwo"}, USER]


def test_calls_their_results_and_thoughts() -> None:
    assistant = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "of another server"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Zürich"}},
            {"type": "tool_use", "id": "call_2", "name": "weather", "input": {}, "caller": {"type": "direct"}},
        ],
    }
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": texts("sunny", "warm")},
            {"type": "tool_result", "tool_use_id": "call_2", "content": "no city", "is_error": True},
            {"type": "tool_result", "tool_use_id": "x"},
            {"type": "text", "text": "Go on."},
        ],
    }
    functions = [{"name": "weather", "arguments": text} for text in ('{"city": "Zürich"}', "{}")]
    calls = [{"id": f"call_{n}", "type": "function", "function": each} for n, each in enumerate(functions, 1)]
    assert shown(chat(USER, assistant, results)) == [
        USER,
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "sunny\nwarm", "tool_call_id": "call_1"},
        {"role": "tool", "content": "Error: no city", "tool_call_id": "call_2"},
        {"role": "tool", "content": "", "tool_call_id": "x"},
        {"role": "user", "content": "Go on."},
    ]


def test_documents_and_search_results_of_text_are_texts() -> None:
    content = [
        {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "plain"}},
        {"type": "document", "source": {"type": "content", "content": texts("a", "b")}},
        {"type": "search_result", "title": "S", "source": "http://x", "content": texts("found")},
    ]
    (message,) = shown(chat({"role": "user", "content": content}))
    assert message["content"] == "T\nC\nplain\na\nb\nS\nhttp://x\nfound"


def test_tools_are_functions() -> None:
    body = chat(tools=[TOOL | {"strict": True, "type": "custom"}])
    (tool,) = body.tools
    assert tool.model_dump(exclude_none=True) == {
        "type": "function",
        "function": {"name": "weather", "description": "Today's.", "parameters": SCHEMA, "strict": True},
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ("auto", None)),
        ({"type": "any", "disable_parallel_tool_use": True}, ("required", False)),
        ({"type": "none"}, ("none", None)),
        ({"type": "tool", "name": "weather"}, ("weather", None)),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], expected: tuple[str, bool | None]) -> None:
    body = chat(tools=[TOOL], tool_choice=choice)
    found: Any = body.tool_choice
    assert (found if isinstance(found, str) else found.function.name, body.parallel_tool_calls) == expected


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"enable_thinking": True}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking_is_for_the_template_to_know(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    body = chat(**fields)
    assert body.chat_template_kwargs == variables
    assert body.thinking_budget_tokens == fields.get("thinking", {}).get("budget_tokens")


@pytest.mark.parametrize(
    ("content", "goes_on"),
    [
        ("The best answer is (", True),
        (texts("The best answer is ("), True),
        ("", None),
        ([{"type": "thinking", "thinking": "x", "signature": ""}], None),
        ([*texts("a"), {"type": "tool_use", "id": "x", "name": "f", "input": {}}], None),
    ],
)
def test_an_answer_that_has_begun_goes_on(content: Any, goes_on: bool | None) -> None:
    assert chat(USER, {"role": "assistant", "content": content}).continue_final_message is goes_on
    assert chat({"role": "assistant", "content": content}, USER).continue_final_message is None


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_a_schema_is_the_form_of_the_answer(where: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    body = chat(**{where: {"format": form} if where == "output_config" else form})
    assert isinstance(body.form, NamedSchema)
    assert body.form.schema == SCHEMA


def test_how_tokens_are_chosen_and_who_asks() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "session_id": "s", "supersede": "k", "stream": True}
    fields |= {"timeout": 3, "priority": 1}
    body = chat(stop_sequences=["END"], **fields)
    assert {name: getattr(body, name) for name in fields} == fields
    assert (body.stop, body.most_tokens, body.only_warms) == (["END"], 9, False)
    assert chat(max_tokens=0).only_warms


@pytest.mark.parametrize(
    ("role", "block", "words"),
    [
        ("assistant", {"type": "tool_result", "tool_use_id": "x"}, "'tool_result' is the user's"),
        ("user", {"type": "tool_use", "id": "x", "name": "f", "input": {}}, "'tool_use' is the assistant's"),
        ("user", {"type": "thinking", "thinking": "x", "signature": ""}, "'thinking' is the assistant's"),
    ],
)
def test_a_block_of_the_other_role_is_refused(role: str, block: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        chat({"role": role, "content": [block]})


# -- histories of other servers ----------------------------------------------------------------------------------------


USERS = ("tool_result", "document", "search_result")
CHANGES = ("tool_addition", "tool_removal", "additional_tools")  # they say which tools there are


class Noted:
    """Takes note of what is reported as ignored."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, name: str) -> None:
        self.names.append(name)


def cases(union: Any) -> list[Any]:
    every = enumerate(filter(is_readable, variants(union)))
    return [pytest.param(one, id=f"{one['type']} {number}") for number, one in every]


def is_readable(one: dict[str, Any]) -> bool:
    """Return whether it is not, and does not contain in a user's part, a picture or a file, which are refused."""
    source, inside = one.get("source"), one.get("content", one.get("output"))
    if isinstance(source, dict) and source["type"] not in ("text", "content"):
        return False
    hosted = one.get("type") not in (None, "message", *USERS, "function_call_output", "custom_tool_call_output")
    parts = inside if isinstance(inside, list) and not hosted else []
    return one.get("type") not in ("image", "input_image", "input_file") and all(map(is_readable, parts))


def parts_of_results() -> Any:
    hints = typing.get_type_hints(anthropic_types.BetaToolResultBlockParam)
    return typing.get_args(typing.get_args(hints["content"])[1])[0]


@pytest.mark.parametrize("block", cases(anthropic_types.BetaContentBlockParam))
def test_no_block_of_a_message_is_refused(block: dict[str, Any]) -> None:
    role = "user" if block["type"] in USERS else "assistant"
    check_block(block, [USER, {"role": role, "content": [block]}, USER], [USER, USER])


@pytest.mark.parametrize("part", cases(parts_of_results()))
def test_no_part_of_a_tools_result_is_refused(part: dict[str, Any]) -> None:
    result = {"type": "tool_result", "tool_use_id": "x"}
    with_part, without = ([USER, {"role": "user", "content": [result | {"content": found}]}] for found in ([part], []))
    check_block(part, with_part, without)


def check_block(block: dict[str, Any], messages: list[dict[str, Any]], without: list[dict[str, Any]]) -> None:
    """It is shown to the model, or reported."""
    noted, others = Noted(), Noted()
    shown = messages_of(messages, noted) != messages_of(without, others)
    assert shown != (noted.names == [f"messages.content.{block['type']}"]) or block["type"] in CHANGES


def messages_of(messages: list[dict[str, Any]], noted: Noted) -> list[dict[str, Any]]:
    body = MessagesBody.model_validate({"max_tokens": 1, "messages": messages})
    body._ignore = noted.add
    return [message.for_template() for message in chat_of(body).messages]


@pytest.mark.parametrize("item", cases(openai_types.ResponseInputItemParam))
def test_no_item_of_a_response_is_refused(item: dict[str, Any]) -> None:
    if item["type"] == "item_reference":  # it is looked up before
        assert ResponsesBody.model_validate({"input": [item]}).references == [item["id"]]
        return
    noted = Noted()
    shown = chat_of_items([USER, item, USER], noted) != chat_of_items([USER, USER], Noted())
    assert shown != (noted.names == [f"input.{item['type']}"]) or item["type"] in CHANGES


def chat_of_items(items: list[dict[str, Any]], noted: Noted) -> list[dict[str, Any]]:
    body = ResponsesBody.model_validate({"input": items})
    body._ignore = noted.add
    return [message.for_template() for message in body.chat(body.table(), body.items).messages]


@pytest.mark.parametrize("item", cases(openai_types.ResponseInputItemParam))
def test_an_item_that_is_not_ours_is_kept_as_it_came(item: dict[str, Any]) -> None:
    if item["type"] not in KINDS or item["type"] in ("tool_search_output", "additional_tools"):
        body = ResponsesBody.model_validate({"input": [item]})
        assert kept(body.items, "x") == [{"status": "completed"} | item]
