"""The log of a server: each line that belongs to a request has its id, and endings have facts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_process import ServerProcess
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world
from tests.support.marks import mostly_long

SESSION = "one \u00e9 [31m"


async def facts_of(caplog: pytest.LogCaptureFixture, words: str) -> dict[str, Any]:
    found = [vars(record) for record in caplog.records if words in record.getMessage()]
    assert len(found) == 1, caplog.text
    return found[0]


async def test_a_cancelled_ending_has_its_facts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pyllmcancel")
    world.hold()
    body = {"prompt": "hello", "session_id": SESSION, "max_tokens": 500}
    exchange = world.begin("POST", COMPLETIONS, body, headers={"x-request-id": "mine"})
    await world.held()
    await world.begin("POST", "/v1/requests/mine/cancel?wait=false").end()
    world.gate.open()
    await exchange.end()
    told = (await world.get("/v1/requests/mine")).json()
    ended = await facts_of(caplog, "request mine cancelled")
    assert (ended["request_id"], ended["reason"], ended["phase"]) == ("mine", "explicit", told["phase"])
    assert ended["cancel_latency_ms"] == pytest.approx(told["cancel_latency_ms"], abs=0.01)
    assert (ended["completion_tokens"], ended["session"]) == (told["completion_tokens"], SESSION)
    assert ended["seconds"] > 0
    access = await facts_of(caplog, 'mine "POST /v1/completions" 499')
    assert (access["request_id"], access["status"], access["path"]) == ("mine", 499, COMPLETIONS)


async def test_every_line_about_a_request_has_its_id(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pyllmcancel")
    body = {"prompt": "hello", "max_tokens": 3, "no_such_field": 1, "supersede": "k"}
    for name in ("first", "second"):
        await world.begin("POST", COMPLETIONS, body, headers={"x-request-id": name}).end()
    await world.begin("POST", COMPLETIONS, b"{", headers={"x-request-id": "third"}).end()
    lines = [record for record in caplog.records if record.name.startswith("pyllmcancel.")]
    assert {vars(record)["request_id"] for record in lines} == {"first", "second", "third"}


@pytest.mark.parametrize(
    ("path", "fields", "options", "n_lines"),
    [
        (COMPLETIONS, {}, {}, 1),
        (COMPLETIONS, {"supersede": "k"}, {}, 0),
        (COMPLETIONS, {"max_tokens": 0}, {}, 0),
        (COMPLETIONS, {}, {"supersede": "user"}, 0),
        (CHAT, {}, {}, 0),
    ],
)
async def test_completions_that_pile_up_are_reported_once(
    path: str, fields: dict[str, Any], options: dict[str, Any], n_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pyllmcancel")
    body = {"prompt": "hello"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hello"}]}

    async def ask(world: World, name: str, port: int, address: str = "10.0.0.1") -> None:
        options = {"headers": {"x-request-id": name}, "client": (address, port)}
        world.begin("POST", path, body | fields, **options)
        await world.added(name)

    def lines() -> int:
        return caplog.text.count("--supersede client-ip would have cancelled all but the newest")

    async with open_world(**options) as world:
        world.hold()
        await ask(world, "other", 9, "10.0.0.2")
        for number in range(3):
            await ask(world, f"key-{number}", number)
        await world.post("/v1/requests/key-0/cancel?wait=false")
        await ask(world, "key-3", 3)
        assert lines() == 0  # three live ones of the address
        for number in range(4, 7):
            await ask(world, f"key-{number}", number)
            assert lines() == n_lines
        world.gate.open()


@pytest.mark.parametrize("form", mostly_long(["text", "json"], "json"))
def test_all_that_a_server_writes_is_in_the_form_that_was_asked_for(long_model: Path, form: str) -> None:
    environment = {"PYLLMCANCEL_LOG_FORMAT": form, "PYLLMCANCEL_LLAMA_LOG": "1", "PYLLMCANCEL_API_KEY": "secret"}
    with ServerProcess("--model", str(long_model), "--store", "off", environment=environment) as server:
        body = {"prompt": "hello", "max_tokens": 2, "session_id": SESSION}
        # No peer is trusted: the client's address is the socket's.
        server.started().http.headers["x-api-key"] = "secret"
        answer = server.http.post(COMPLETIONS, json=body, headers={"x-forwarded-for": "10.0.0.5"})
        assert answer.status_code == 200
        name = answer.headers["x-request-id"]
        assert server.http.get("/two%0alines%1b[2J", headers={"x-request-id": "lost"}).status_code == 404
        server.signal()
        server.wait()
        lines = server.log.removesuffix("\n").split("\n")
    assert all(line.isprintable() and "secret" not in line for line in lines)
    if form == "text":
        assert all(line[2] == line[5] == ":" and line[8] == "." for line in lines)
        assert any("INFO    llama.cpp: llama_model_loader: " in line for line in lines)
        assert [name in line for line in lines if ": request " in line] == [True, True]
        return
    records = [json.loads(line) for line in lines]
    assert {"uvicorn.error", "llama.cpp", "pyllmcancel.engine"} <= {record["logger"] for record in records}
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(record) for record in records))
    of_request = [record for record in records if record.get("request_id") == name]
    # A short answer may have ended before the thread that submitted it comes to say that it was added.
    *of_engine, last = of_request
    assert {record.get("finish_reason") for record in of_engine} == {None, "length"}
    assert ([record["session"] for record in of_engine], last["client"]) == ([SESSION] * 2, "127.0.0.1")
    assert [record["status"] for record in records if record.get("request_id") == "lost"] == [404]
