"""``--unknown-fields``: what becomes of fields that have no effect, and what is refused whatever it says."""

from typing import Any

import pytest

from pyllmcancel.server.http.exchange import Exchange as Facts
from pyllmcancel.server.http.unknown_fields import LONGEST_NAME, MAX_LOGGED_PAIRS, MAX_NAMES, IgnoredLog
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world, unnamed
from tests.support.llama_client import COMPLETION

PAGE = "https://page.example"
PATHS = (COMPLETIONS, CHAT, COMPLETION, "/infill")
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
# The forms of an answer by which other dialects ask for them.
FORMS: dict[str, Any] = {
    "response_format": {"type": "json_object"},
    "format": "json",
    "guided_json": {"type": "object"},
    "guided_regex": "x+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "x"',
    "structured_outputs": {"json_object": True},
    "response_schema": {"type": "object"},
}
FIM = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}
TEXT = {"type": "text", "text": "x"}
VERSIONED = {"type": "function", "function": {"name": "f", "version": 2}, "defer_loading": True}


HELLO = [{"role": "user", "content": "hello"}]
NEEDED: dict[str, dict[str, Any]] = {path: {"prompt": "hello"} for path in (COMPLETIONS, COMPLETION)}
NEEDED |= {path: {"messages": HELLO} for path in (CHAT, MESSAGES)}
NEEDED |= {"/infill": {"input_prefix": "a", "input_suffix": "b"}, RESPONSES: {"input": "hello"}}


def asked(path: str, **fields: Any) -> dict[str, Any]:
    return NEEDED[path] | {"max_output_tokens" if path == RESPONSES else "max_tokens": 2} | fields


def code_of(path: str) -> str | int:
    """llama-server's errors have the status there."""
    return 400 if path in (COMPLETION, "/infill", MESSAGES) else "unsupported_field"


def ignored(exchange: Exchange) -> str:
    assert exchange.status == 200, exchange.body
    return exchange.headers.get("x-ignored-fields", "")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_field_is_named_in_a_header_and_in_the_log(
    world: World, path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world.model.special_tokens = world.model.special_tokens | FIM
    body = asked(path, stream=stream, max_token=3, enable_search=True)
    for _ in range(2):
        assert ignored(await world.post(path, body)) == "max_token, enable_search"
    assert not ignored(await world.post(path, asked(path, stream=stream)))
    told = [record.message for record in caplog.records if "no effect" in record.message]
    assert told == [f"127.0.0.1 sends {name}, which has no effect here" for name in ("max_token", "enable_search")]


async def test_each_client_has_its_own_line(caplog: pytest.LogCaptureFixture) -> None:
    async with open_world(api_keys=unnamed("one", "two")) as world:
        for key in ("one", "two", "one"):
            assert ignored(await world.complete(x=1, headers={"authorization": f"Bearer {key}"}).end()) == "x"
    told = [record.message for record in caplog.records if "no effect" in record.message]
    assert len(told) == 2
    assert all(line.startswith("key-") for line in told)


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        (COMPLETIONS, {"stream": True, "stream_options": {"include_usage": True, "chunk": 1}}, "stream_options.chunk"),
        (CHAT, {"messages": [{"role": "user", "content": [TEXT | {"id": 1}] * 3}]}, "messages.content.id"),
        (CHAT, {"tools": [VERSIONED], "tool_choice": "none"}, "tools.defer_loading, tools.function.version"),
        (COMPLETION, {"lora": [], "prompt": {"prompt_string": "x", "images": 1}}, "prompt.images"),
    ],
)
async def test_fields_inside_others_have_their_way(world: World, path: str, fields: dict[str, Any], names: str) -> None:
    assert ignored(await world.post(path, asked(path, **fields))) == names


async def test_what_is_ignored_does_not_reach_the_prompt(world: World) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    plain = await world.chat(tools=[tool], max_tokens=1).end()
    more = {"type": "function", "function": tool["function"] | {"note": "secret"}, "extra": "secret"}
    exchange = await world.chat(tools=[more], max_tokens=1).end()
    assert exchange.json()["usage"]["prompt_tokens"] == plain.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", PATHS)
async def test_it_may_be_refused_or_passed_over_in_silence_and_null_is_no_field(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(unknown_fields="refuse") as world:
        world.model.special_tokens = world.model.special_tokens | FIM
        error = (await world.post(path, asked(path, max_token=3))).json()["error"]
        assert (error["param"], error["code"]) == ("max_token", code_of(path))
        assert error["message"] == "unsupported field: max_token"
        assert await world.requests() == []
        assert (await world.post(path, asked(path, max_token=None, functions=None))).status == 200
    async with open_world(unknown_fields="ignore", cors_origins=(PAGE,)) as world:
        world.model.special_tokens = world.model.special_tokens | FIM
        exchange = await world.post(path, asked(path, max_token=3), headers={"origin": PAGE})
        assert not ignored(exchange)
        assert "X-Ignored-Fields" in exchange.headers["access-control-expose-headers"]
    assert "max_token" not in caplog.text


@pytest.mark.parametrize("policy", ["ignore", "warn", "refuse"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"functions": [{"name": "f"}]}),
        (CHAT, {"function_call": {"name": "f"}}),
        (CHAT, {"web_search_options": {"user_location": "x"}}),
        (CHAT, {"audio": {"voice": "x"}}),
        (CHAT, {"moderation": {"model": "x"}}),
        (CHAT, {"length_penalty": 2}),
        (COMPLETIONS, {"use_beam_search": True}),
        (COMPLETIONS, {"images": ["aGk="]}),
        (COMPLETION, {"negative_prompt": "x"}),
        (COMPLETION, {"multimodal_data": ["aGk="]}),
        *((path, {name: form}) for path in (COMPLETION, "/infill", RESPONSES) for name, form in FORMS.items()),
        *((MESSAGES, {name: form}) for name, form in FORMS.items()),
        *((path, {"json_schema": {"enum": [1]}}) for path in (RESPONSES, MESSAGES)),
        *((path, {"grammar": 'root ::= "x"'}) for path in (RESPONSES, MESSAGES)),
        *((path, {"output_format": {"type": "json_schema", "schema": {}}}) for path in (*PATHS, RESPONSES)),
        *((path, {"output_config": {"format": {"type": "json_schema"}}}) for path in (*PATHS, RESPONSES)),
        *((path, {"text": {"format": {"type": "json_object"}}}) for path in (*PATHS, MESSAGES)),
    ],
)
async def test_what_would_change_the_answer_is_refused_by_name(path: str, fields: dict[str, Any], policy: str) -> None:
    async with open_world(unknown_fields=policy) as world:
        exchange = await world.post(path, asked(path, **fields))
        (name,) = fields
        error = exchange.json()["error"]
        inner = ".format" if name in ("text", "output_config") else ""
        assert exchange.status == 400
        assert error["message"] == f"unsupported field: {name}{inner}"
        if path != MESSAGES:  # Anthropic's errors have neither
            assert (error["param"], error["code"]) == (name, code_of(path))
        assert await world.requests() == []


@pytest.mark.parametrize("path", [*PATHS, RESPONSES, MESSAGES])
async def test_a_form_that_asks_for_plain_text_asks_for_nothing(world: World, path: str) -> None:
    world.model.special_tokens = world.model.special_tokens | FIM
    plain = {"type": "text"}
    body = asked(path, response_format=plain, guided_json=None, text={"format": plain}, output_config={})
    assert (await world.post(path, body)).status == 200


async def test_a_header_holds_names_of_every_kind_and_not_too_many(world: World) -> None:
    named = ignored(await world.complete(**{"a,b": 1, "c\r\nX-Evil: 1": 2, "é": 3, "x" * 200: 4}).end())
    assert named == f"a%2Cb, c%0D%0AX-Evil%3A%201, %C3%A9, {'x' * LONGEST_NAME}"
    many = ignored(await world.complete(**{f"field-{number}": 1 for number in range(150)}).end())
    assert many.split(", ") == [f"field-{number}" for number in range(MAX_NAMES)]


async def test_the_log_forgets_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    log = IgnoredLog()
    scope = {"state": {"exchange": Facts(request_id="a")}, "client": ("10.0.0.1", 1)}
    log.log(scope, [f"f{number}" for number in range(MAX_LOGGED_PAIRS)])
    log.log(scope, ["f0"])  # known, and young again
    log.log(scope, ["new"])
    before = len(caplog.records)
    log.log(scope, ["f0", "new", "f1"])
    assert [record.args[1] for record in caplog.records[before:]] == ["f1"]  # type: ignore[index]


async def test_a_filter_that_is_not_known_cancels_nothing(world: World) -> None:
    await world.running_stream("mine")
    refused = await world.post("/v1/requests/cancel", {"status": "running", "sessions": "x"})
    assert refused.refusal == (400, "sessions")
    assert (await world.request("mine"))["cancel_reason"] is None
