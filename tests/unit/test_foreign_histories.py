"""Every kind of block and item that the official clients know, in a history: none of them is refused."""

import typing
from typing import Any

import anthropic.types.beta as anthropic_types
import openai.types.responses as openai_types
import pytest

from pyllmcancel.server.anthropic.body import MessagesBody
from pyllmcancel.server.anthropic.translation import chat_of
from pyllmcancel.server.responses.body import ResponsesBody
from pyllmcancel.server.responses.input_items import KINDS
from pyllmcancel.server.responses.storage.items import kept
from tests.support.client_types import variants

USER = {"role": "user", "content": "hello"}
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
    if KINDS.get(item["type"], "loaded") == "loaded":
        body = ResponsesBody.model_validate({"input": [item]})
        assert kept(body.items, "x") == [{"status": "completed"} | item]
