"""Responses as OpenAI's own client reads them, but strictly: its types take what is missing or wrong as it comes."""

from functools import cache
from typing import Any, get_args

import openai
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.http_asgi import Exchange

RESPONSES = "/v1/responses"
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


@cache
def event_types() -> dict[str, type[BaseModel]]:
    return {get_args(one.model_fields["type"].annotation)[0]: one for one in get_args(get_args(ResponseStreamEvent)[0])}


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """A response, of which the client's type finds nothing wrong."""
    TypeAdapter(Response).validate_python(response)
    return response


def checked_events(exchange: Exchange, first: int = 0) -> list[dict[str, Any]]:
    """The events of a stream: each of its type, numbered from `first` on, and one of them, the last, an ending."""
    events: list[dict[str, Any]] = exchange.json_events()
    for number, event in enumerate(events, first):
        event_types()[event["type"]].model_validate(event)
        assert event["sequence_number"] == number
    if exchange.complete and events:
        assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    return events


def accumulated(events: list[dict[str, Any]]) -> Any:
    """Return the result of the client's stream helper: the final response, if it was completed."""
    state: Any = ResponseStreamState(input_tools=[], text_format=openai.omit)
    for event in events:
        state.handle_event(event_types()[event["type"]].model_validate(event))
    return state._completed_response


def output_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that were done, in order, each put together from its deltas."""
    added: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if "output_index" in event:
            added.setdefault(event["output_index"], []).append(event)
    assert sorted(added) == list(range(len(added)))
    return [_item(of_item) for _, of_item in sorted(added.items())]


def _item(events: list[dict[str, Any]]) -> dict[str, Any]:
    first, last = events[0], events[-1]
    assert (first["type"], last["type"]) == ("response.output_item.added", "response.output_item.done")
    item: dict[str, Any] = last["item"]
    assert {event["item_id"] for event in events[1:-1]} <= {item["id"]} == {first["item"]["id"]}
    told = "".join(event["delta"] for event in events if "delta" in event)
    match item["type"]:
        case "message" | "reasoning":
            assert told == item["content"][0]["text"]
        case "function_call":
            assert told == item["arguments"]
        case "custom_tool_call":
            assert told == item["input"]
    return item
