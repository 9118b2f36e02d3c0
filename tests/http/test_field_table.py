"""Each field of chats and completions has the effect that docs/fields.md says."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.requests.request import Request
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.openai.completion_body import CompletionBody
from pyllmcancel.server.wire.fields import wire_fields
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, accepted
from tests.support.marks import mostly_long

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("field_table.json")
Row = dict[str, Any]
# A row for each field: a usual value, and what becomes of it.
ROWS: list[Row] = json.loads(TABLE.read_text("utf-8"))
ENDPOINTS = {"chats": CHAT, "completions": COMPLETIONS}
SAID = b"one two"
PROMPT = b"hello"
FIM = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}


@pytest.mark.parametrize("of", mostly_long(dict.fromkeys(row["of"] for row in ROWS), "OpenAI"))
@pytest.mark.parametrize("endpoint", mostly_long(ENDPOINTS, "chats"))
async def test_fields_do_what_the_table_says(world: World, endpoint: str, of: str) -> None:
    """All of one server in one world: what is wrong is listed by field."""
    wrong: list[str] = []
    world.model.special_tokens = world.model.special_tokens | FIM
    made = accepted(world)
    for row in ROWS:
        if row["of"] != of:
            continue
        made.clear()
        exchange = await ask(world, row, endpoint)
        try:
            check(row, row[endpoint], exchange, made)
        except (AssertionError, LookupError, AttributeError) as error:
            wrong.append(f"{row['field']}: {type(error).__name__} {error} {exchange.body[:300]!r}")
    assert wrong == []


async def ask(world: World, row: Row, endpoint: str) -> Exchange:
    path = ENDPOINTS[endpoint]
    needed: dict[str, Any] = {"prompt": PROMPT.decode(), "max_tokens": None, "temperature": 0}
    prompt = PROMPT
    if path == CHAT:
        needed = {"messages": [{"role": "user", "content": PROMPT.decode()}], "temperature": 0}
        prompt = b"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    for known in (prompt, prompt[-2:]):
        world.model.answers[known] = SAID
    return await world.post(path, needed | row["body"])


def check(row: Row, verdict: str, exchange: Exchange, made: list[Request]) -> None:
    name = row["field"].partition(" (")[0]
    told = exchange.headers.get("x-ignored-fields", "").split(", ")
    if verdict == "refused":
        param = row.get("param", name.partition(".")[0].partition("[")[0])
        assert (exchange.status, exchange.json()["error"]["param"], made) == (400, param, [])
        return
    assert exchange.status == 200
    assert told == ([name.replace("[]", "")] if verdict == "ignored" else [""])
    if verdict == "honoured":
        check_effect(row, exchange, made[-1])


def check_effect(row: Row, exchange: Exchange, request: Request) -> None:
    effect = row["effect"]
    parts = exchange.json_events() if row["body"].get("stream") else [exchange.json()]
    for path, value in effect.get("params", {}).items():
        found: Any = request.params
        for name in path.split("."):
            found = getattr(found, name)
        assert plain(found) == value, path
    for name, value in effect.get("request", {}).items():
        assert getattr(request, name) == value, name
    for path in effect.get("answer", ()):
        assert any(has(part, path) for part in parts), (path, parts)
    if "choices" in effect:
        assert len(parts[0]["choices"]) == effect["choices"]
    if "text" in effect:
        (choice,) = parts[0]["choices"]
        assert (choice["text"] if "text" in choice else choice["message"]["content"]) == effect["text"]
    if effect.get("constrained"):
        assert request.params.sampling.grammar or request.params.constraint
    if effect.get("events"):
        assert exchange.events[-1] == "[DONE]"


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return "-inf" if value == float("-inf") else value


def has(part: Any, path: str) -> bool:
    """Return whether there is something at `a/0/b`, or under that very name."""
    if isinstance(part, Mapping) and path in part:
        return True
    for key in path.split("/"):
        if isinstance(part, list) and key.isdigit() and int(key) < len(part):
            part = part[int(key)]
        elif isinstance(part, Mapping) and part.get(key) is not None:
            part = part[key]
        else:
            return False
    return True


def test_the_table_has_every_field_of_the_two_bodies_and_each_once() -> None:
    names = [row["field"] for row in ROWS]
    assert len(names) == len(set(names)) >= 150
    told = {name.partition(" (")[0].partition(".")[0].partition("[")[0] for name in names}
    fields = {*wire_fields(ChatBody), *wire_fields(CompletionBody)}
    missing = {name.partition(".")[0] for name in fields} - told
    assert not missing, missing


def test_the_page_is_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import describe_fields

    assert describe_fields.PAGE.read_text("utf-8") == describe_fields.page(TABLE), "run tools/describe_fields.py"
    del sys.modules["describe_fields"]
