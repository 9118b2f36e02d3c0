"""``/v1/messages``: Anthropic's answers and errors, its blocks, and the cancels that every other endpoint has."""

import json
from typing import Any

import pytest

from pyllmcancel.server.anthropic.message_blocks import SIGNATURE
from tests.support.chat_models import CALL, Says
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world, unnamed

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
ASKED: dict[str, Any] = HELLO | {"max_tokens": 8}
MINE = {"x-request-id": "mine", "x-supersede": "key"}
STATUS = {
    "superseded": (499, "invalid_request_error"),
    "explicit": (499, "invalid_request_error"),
    "deadline": (504, "timeout_error"),
    "shutdown": (503, "overloaded_error"),
}

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def ask(world: World, *, headers: dict[str, str] | None = None, **fields: Any) -> Exchange:
    return world.begin("POST", MESSAGES, ASKED | fields, headers=headers)


def error_of(exchange: Exchange, status: int, kind: str) -> dict[str, Any]:
    assert exchange.status == status, exchange.body
    return told(exchange.json(), exchange, kind)


def told(answer: dict[str, Any], exchange: Exchange, kind: str) -> dict[str, Any]:
    assert set(answer) - {"usage"} == {"type", "error", "request_id"}
    assert (answer["type"], answer["error"]["type"]) == ("error", kind)
    assert answer["request_id"] == exchange.headers["request-id"] == exchange.headers["x-request-id"]
    return answer["error"]


# -- answers ----------------------------------------------------------------------------------------------------------


async def test_a_message_has_the_id_of_its_request_and_its_usage(world: World) -> None:
    exchange = await ask(world, headers=MINE, temperature=0).end()
    assert exchange.headers["request-id"] == "mine"
    answer = exchange.json()
    usage, (block,) = answer.pop("usage"), answer.pop("content")
    assert answer == {
        "id": "msg_mine",
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "stop_reason": "max_tokens",
        "stop_sequence": None,
    }
    assert block["type"] == "text"
    assert (usage["output_tokens"], usage["cache_creation_input_tokens"]) == (8, 0)
    assert usage["input_tokens"] > 0
    again = (await ask(world, temperature=0).end()).json()
    assert again["content"] == [block]
    assert again["usage"]["cache_read_input_tokens"] > 0
    assert again["usage"]["cache_read_input_tokens"] + again["usage"]["input_tokens"] == usage["input_tokens"]


async def test_a_stream_says_what_the_whole_answer_says(world: World) -> None:
    whole = (await ask(world, temperature=0).end()).json()
    events = (await ask(world, temperature=0, stream=True).end()).named_events()
    assert [event["type"] for event in events[:3]] == ["message_start", "ping", "content_block_start"]
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event["delta"].get("text", "") for event in events if "delta" in event)
    assert [{"type": "text", "text": text, "citations": None}] == whole["content"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    total = whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]
    assert events[0]["message"]["usage"]["input_tokens"] == total


async def test_a_message_begins_before_its_prompt_is_computed(world: World) -> None:
    world.hold()
    exchange = await ask(world, stream=True).until_body(b"message_start")
    await world.held()
    assert [event["type"] for event in exchange.named_events()] == ["message_start", "ping"]


async def test_a_silent_stream_has_pings() -> None:
    async with open_world(sse_ping_interval=0.001) as world:
        world.hold()
        exchange = ask(world, stream=True)
        await world.held()
        await exchange.until_body(b'event: ping\ndata: {"type": "ping"}\n\n' * 3)


@streaming
async def test_a_stop_sequence_is_named(world: World, stream: bool) -> None:
    text = (await ask(world, temperature=0).end()).json()["content"][0]["text"]
    exchange = await ask(world, temperature=0, stop_sequences=["never", text[2]], stream=stream).end()
    end = exchange.named_events()[-2]["delta"] if stream else exchange.json()
    assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", text[2])


async def test_tokens_are_counted_as_they_are_used_and_none_at_all_warm_the_cache_up(world: World) -> None:
    fields = {"system": "Be brief."}
    warm = (await ask(world, max_tokens=0, **fields).end()).json()
    assert (warm["content"], warm["usage"]["output_tokens"]) == ([], 0)
    counted = await world.post(COUNT, HELLO | fields)
    assert counted.json() == {"input_tokens": warm["usage"]["input_tokens"]}
    assert (await ask(world, **fields).end()).json()["usage"]["cache_read_input_tokens"] > 0


# -- errors -----------------------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "x"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
BASH = {"type": "bash_20250124", "name": "bash"}


def blocks(*content: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER | {"content": list(content)}]}


def in_form(field: str, **form: Any) -> dict[str, Any]:
    form = {"type": "json_schema"} | form
    return {field: {"format": form} if field == "output_config" else form}


RESULT = {"type": "tool_result", "tool_use_id": "a"}


# By kind: fields, words of the message, and the name of the field.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens: Field required", "max_tokens"),
    "no messages": ({"messages": None}, "messages: Field required", "messages"),
    "empty messages": ({"messages": []}, "messages", "messages"),
    "an image in a result": (blocks(RESULT | {"content": [IMAGE]}), "without a projector", "messages"),
    "a video": (blocks({"type": "video"}), "'video' is not supported; text and images are", "messages"),
    "a PDF": (blocks({"type": "document", "source": {"type": "base64"}}), "'base64' is not supported", "messages"),
    "a block of no known kind": (blocks({"type": "smell"}), "'smell' is not supported", "messages"),
    "a choice of a hosted tool": ({"tools": [BASH], "tool_choice": BASH | {"type": "tool"}}, "bash", "tool_choice"),
    "a tool's bad name": ({"tools": [BASH, {"name": "a b", "input_schema": {}}]}, "name", "tools"),
    "two tools of a name": ({"tools": [{"name": "a", "input_schema": {}}] * 2}, "two tools", "tools"),
    "a choice without tools": ({"tool_choice": {"type": "any"}}, "no tools", "tool_choice"),
    "an unknown choice": ({"tool_choice": {"type": "tool", "name": "b"}}, "b", "tool_choice"),
    "a schema": (in_form("output_config", schema={"type": "nothing"}), "", "output_config"),
    "a misspelt schema": (in_form("output_config", shema={}), "schema", "output_config"),
    "another API's": (in_form("output_format", schema={}, json_schema={"schema": {}}), "json_schema", "output_format"),
    "a thread": ({"thread": {"id": "x"}}, "thread", "thread"),
    "a temperature": ({"temperature": -1}, "temperature", "temperature"),
    "a stop sequence": ({"stop_sequences": ["x" * 1_000]}, "stop_sequences", "stop_sequences"),
}


@streaming
@pytest.mark.parametrize("kind", BAD)
async def test_bad_input_is_refused_by_name(world: World, kind: str, stream: bool) -> None:
    fields, words, param = BAD[kind]
    error = error_of(await ask(world, stream=stream, **fields).end(), 400, "invalid_request_error")
    assert words in error["message"]
    assert error["param"].split("[")[0] == param


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "kind"),
    [
        ("POST", MESSAGES, {"body": b"{"}, 400, "invalid_request_error"),
        ("POST", MESSAGES, {"headers": {"x-request-id": "a b"}}, 400, "invalid_request_error"),
        ("POST", MESSAGES, {"headers": {"x-api-key": "wrong"}}, 401, "authentication_error"),
        ("POST", f"{MESSAGES}/batches", {}, 404, "not_found_error"),
        ("POST", MESSAGES, {"body": ASKED | {"model": "other"}}, 404, "not_found_error"),
        ("GET", MESSAGES, {}, 405, "invalid_request_error"),
        ("POST", MESSAGES, {"body": b"x" * 999}, 413, "request_too_large"),
        ("POST", MESSAGES, {"headers": {"content-type": "text/plain"}}, 415, "invalid_request_error"),
        ("POST", COUNT, {"body": b"{}"}, 400, "invalid_request_error"),
    ],
)
async def test_every_error_has_anthropics_shape(
    method: str, path: str, options: dict[str, Any], status: int, kind: str
) -> None:
    async with open_world(api_keys=unnamed("key"), max_body=200, strict_model=True) as world:
        headers = {"x-api-key": "key"} | options.pop("headers", {})
        exchange = await world.begin(method, path, headers=headers, **options).end()
        error_of(exchange, status, kind)
        assert exchange.headers["x-should-retry"] == "false"


async def test_a_prompt_that_is_too_long_is_counted_and_refused_in_anthropics_words() -> None:
    async with open_world(n_ctx=64) as world:
        error = error_of(await ask(world, system="x" * 100).end(), 400, "invalid_request_error")
        assert error["message"].startswith("prompt is too long: ")
        assert error["message"].endswith(" tokens > 64 maximum")
        assert (await world.post(COUNT, HELLO | {"system": "x" * 100})).json()["input_tokens"] > 100
        full = (await world.post(MESSAGES, {"messages": [USER], "max_tokens": 500})).json()
        assert full["stop_reason"] == "model_context_window_exceeded", "which is not max_tokens"


async def test_too_many_waiting_requests_are_told_to_come_again() -> None:
    async with open_world(parallel=1, max_queue=1) as world:
        await world.running_stream("running")
        ask(world, headers={"x-request-id": "waits"})
        await world.added("waits")
        exchange = await ask(world).end()
        error_of(exchange, 429, "rate_limit_error")
        assert "retry-after" in exchange.headers
        world.gate.open()


# -- cancels ----------------------------------------------------------------------------------------------------------


@streaming
@pytest.mark.parametrize("reason", STATUS)
async def test_a_cancelled_message_never_looks_complete(world: World, reason: str, stream: bool) -> None:
    world.hold()
    exchange = ask(world, headers=MINE, stream=stream)
    await world.step(2)
    await world.held()
    await world.bring_about(reason)
    await exchange.end()
    status, kind = STATUS[reason]
    if not stream:
        assert error_of(exchange, status, kind)["code"] == reason
        assert exchange.json()["usage"]["input_tokens"] > 0
        return
    *before, last = exchange.named_events()
    assert told(last, exchange, kind)["code"] == reason
    assert "message_start" in {event["type"] for event in before}
    assert not {"message_delta", "message_stop"} & {event["type"] for event in before}


# -- reasoning, text and calls as blocks, and answers that go on where they were cut -----------------------------------


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "input_schema": CITY}
TEXT = {"type": "text", "citations": None}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": SIGNATURE}


async def message_of(world: World, *, stream: bool, **fields: Any) -> dict[str, Any]:
    body = HELLO | {"max_tokens": 200, "temperature": 0, "stream": stream} | fields
    exchange = await world.served(MESSAGES, body)
    return added_up(exchange) if stream else dict(exchange.json())


def added_up(exchange: Exchange) -> dict[str, Any]:
    """The message that the events of a stream add up to."""
    message: dict[str, Any] = {}
    for event in exchange.named_events():
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
            case "content_block_delta":
                kind, *texts = event["delta"].values()
                block = message["content"][event["index"]]
                name = {"input_json_delta": "partial_json", "signature_delta": "signature"}.get(kind, block["type"])
                block[name] = "".join([block.get(name, ""), *texts])
            case "content_block_stop" if "partial_json" in message["content"][-1]:
                message["content"][-1]["input"] = json.loads(message["content"][-1].pop("partial_json"))
            case "message_delta":
                message |= event["delta"]
    return message


BEGUN = {"role": "assistant", "content": [{"type": "text", "text": "The best answer"}]}
PARIS = {"type": "tool_use", "name": "get_weather", "input": {"city": "Paris"}}


def said(text: str) -> dict[str, Any]:
    return TEXT | {"text": text}


@streaming
@pytest.mark.parametrize(
    ("answer", "fields", "content", "reason"),
    [
        ("<think>hm</think>Hi.", {}, [THOUGHT, said("Hi.")], "end_turn"),
        (f"<think>hm</think>I look.\n{CALL}", {"tools": [WEATHER]}, [THOUGHT, said("I look.\n"), PARIS], "tool_use"),
        # A call that is cut has no value that was cut.
        (CALL, {"tools": [WEATHER], "max_tokens": CALL.index("aris")}, [PARIS | {"input": {}}], "max_tokens"),
        # An answer that goes on does not tell again what it goes on from.
        (
            "<think></think>The best answer is B.",
            {"messages": [*HELLO["messages"], BEGUN]},
            [said(" is B.")],
            "end_turn",
        ),
    ],
)
async def test_thoughts_texts_and_calls_are_blocks(
    answer: str, fields: dict[str, Any], content: list[Any], reason: str, *, stream: bool
) -> None:
    async with open_world(model=Says(answer)) as world:
        message = await message_of(world, stream=stream, **fields)
        for block in message["content"]:
            block.pop("id", None)
        assert (message["content"], message["stop_reason"]) == (content, reason)


async def test_thinking_stops_at_its_budget() -> None:
    async with open_world(model=Says(f"<think>{'hm ' * 50}</think>Hi.")) as world:
        message = await message_of(world, stream=False, thinking={"type": "enabled", "budget_tokens": 10})
        assert message["content"][0]["thinking"] == "hm hm hm h"


async def test_thoughts_that_are_sent_back_are_part_of_the_prompt() -> None:
    thoughts = {"type": "thinking", "thinking": "a long thought", "signature": SIGNATURE}
    call = {"type": "tool_use", "id": "abcdefghi", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "abcdefghi", "content": "sunny"}]}
    async with open_world(model=Says("Hi.")) as world:
        counted = []
        for content in ([call], [thoughts, call]):
            messages = [*HELLO["messages"], {"role": "assistant", "content": content}, result]
            counted.append((await world.post("/v1/messages/count_tokens", {"messages": messages})).json())
        assert counted[1]["input_tokens"] >= counted[0]["input_tokens"] + len("a long thought")
