"""OpenAI's files and batches: their lines, results, refusals and ends, over the fake engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.batches import lines as batch_lines
from pyllmcancel.server.batches.lines import Answered
from pyllmcancel.server.batches.running import RunningBatch
from pyllmcancel.server.config import ApiKey, Storage
from tests.http.test_openapi import check_exchange
from tests.support.batches import COMPLETIONS, FIELDS, form, jsonl, line, results_in
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import World, open_world

BATCHES, FILES = "/v1/batches", "/v1/files"
ANN, BOB = ({"authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
KEYS = (ApiKey("ann", "key-a"), ApiKey("bob", "key-b"))
BAD_LINES: list[tuple[Any, str]] = [
    (b"{", "invalid_json"),
    (b"[]", "invalid_json"),
    (b"[" * 200 + b"]" * 200, "invalid_json"),
    (b"\xff", "invalid_json"),
    (line("a"), "duplicate_custom_id"),
    (line(""), "invalid_request"),
    (line("b") | {"custom_id": 7}, "invalid_request"),
    (line("b") | {"method": "GET"}, "invalid_request"),
    (line("b", "/v1/responses"), "invalid_request"),
    (line("b") | {"body": "x"}, "invalid_request"),
    (line("b", stream=True), "invalid_request"),
]


def made(path: str, exchange: Exchange) -> str:
    check_exchange(path, "post", exchange)
    return str(exchange.json()["id"])


async def upload(world: World, *lines: Any, headers: dict[str, str] | None = None) -> str:
    sent = form(jsonl(lines))
    return made(FILES, await world.served(FILES, **sent | {"headers": sent["headers"] | (headers or {})}))


async def create(world: World, *lines: Any, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """Begin a batch of these lines."""
    body = {"input_file_id": await upload(world, *lines, headers=headers), "endpoint": COMPLETIONS} | fields
    return made(BATCHES, await world.served(BATCHES, body, headers=headers))


async def get(world: World, name: str, **options: Any) -> dict[str, Any]:
    exchange = await world.get(f"{BATCHES}/{name}", **options)
    check_exchange(f"{BATCHES}/{{batch_id}}", "get", exchange)
    found: dict[str, Any] = exchange.json()
    return found


async def ended(world: World, name: str, **options: Any) -> dict[str, Any]:
    """Wait until nothing is done for any batch, and return one."""
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*world.app.state.batches._tasks)
    return await get(world, name, **options)


async def results(world: World, batch: dict[str, Any], which: str) -> dict[str, dict[str, Any]]:
    name = batch[f"{which}_file_id"]
    return {} if name is None else results_in((await world.get(f"{FILES}/{name}/content")).body)


async def until_first_result(world: World, name: str) -> None:
    """Let steps finish until a line has its result; the next step is held."""
    while not (await get(world, name))["request_counts"]["completed"]:
        await world.step()
    await world.held()


async def let_cancelled_end(world: World, name: str) -> None:
    """Wait until the requests of a batch are cancelled, and let the steps go on then."""
    for one in await world.requests(f"?session={name}"):
        if one["status"] != "finished":
            await world.cancelling(one["id"])
    world.gate.open()


@pytest.mark.parametrize("url", FIELDS)
async def test_each_line_is_a_request_in_the_batchs_session(world: World, url: str) -> None:
    name = await create(world, *(line(n, url) for n in range(5)), endpoint=url, metadata={"a": "b"})
    batch = await ended(world, name)
    fails = url == "/v1/embeddings"  # the model generates
    counts = {"total": 5, "completed": 0 if fails else 5, "failed": 5 if fails else 0}
    assert (batch["status"], batch["request_counts"], batch["metadata"]) == ("completed", counts, {"a": "b"})
    found = await results(world, batch, "error" if fails else "output")
    assert sorted(found) == ["0", "1", "2", "3", "4"]
    assert {one["response"]["status_code"] for one in found.values()} == {400 if fails else 200}
    assert batch["output_file_id" if fails else "error_file_id"] is None
    if not fails:
        requests = await world.requests(f"?session={name}")
        assert {one["id"] for one in requests} == {one["response"]["request_id"] for one in found.values()}
        assert {one["priority"] for one in requests} == {"idle"}


@pytest.mark.parametrize(("bad", "code"), BAD_LINES)
async def test_a_bad_line_is_an_error_of_its_own(world: World, bad: Any, code: str) -> None:
    batch = await ended(world, await create(world, line("a"), b"  ", bad, line("c", prompt=7), line("d")))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert sorted(await results(world, batch, "output")) == ["a", "d"]
    errors = await results(world, batch, "error")
    assert errors.pop("c")["response"]["status_code"] == 400
    ((_, error),) = errors.items()
    assert (error["error"]["code"], error["response"]) == (code, None)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([b""], "empty_file"),
        ([b"\n \r\n"], "empty_file"),
        ([b"hello", b"{"], "invalid_json_line"),
        ([line(n) for n in range(4)], "too_many_tasks"),
    ],
)
async def test_a_file_that_is_no_batch_fails_it(
    world: World, lines: list[Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_lines, "MAX_LINES", 3)
    name = await create(world, *lines)
    batch = await ended(world, name)
    assert batch["status"] == "failed"
    assert [error["code"] for error in batch["errors"]["data"]] == [code]
    assert (await world.post(f"{BATCHES}/{name}/cancel")).failure == (409, "batch_has_ended")


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"completion_window": "24"}, (400, "completion_window")),
        ({"completion_window": "0h"}, (400, "completion_window")),
        ({"completion_window": "31d"}, (400, "completion_window")),
        ({"endpoint": "/v1/messages"}, (400, "endpoint")),
        ({"input_file_id": "file-x"}, (404, "input_file_id")),
        ({"metadata": {"a": 7}}, (400, "metadata")),
    ],
)
async def test_a_wrong_batch_is_refused(world: World, fields: dict[str, Any], refusal: tuple[int, str]) -> None:
    body = {"input_file_id": await upload(world, line("a")), "endpoint": COMPLETIONS} | fields
    assert (await world.post(BATCHES, body)).refusal == refusal


async def test_a_wrong_upload_is_refused() -> None:
    async with open_world(max_body=2_000, storage=Storage(None, 1e6, 1_000)) as world:
        assert (await world.post(FILES, **form(b"x", purpose="fine-tune"))).refusal == (400, "purpose")
        assert (await world.post(FILES, **form(b"x" * 2_000))).failure == (413, "body_too_large")
        assert (await world.post(FILES, **form(b"x" * 1_000))).failure == (507, "storage_full")
        assert (await world.post(FILES, {"purpose": "batch"})).status == 415
    async with open_world(storage=None) as world:
        assert (await world.post(FILES, **form(b"x"))).failure == (400, "unsupported_field")
        assert (await world.get(BATCHES)).failure == (400, "unsupported_field")


async def test_files_are_listed_read_and_deleted(world: World) -> None:
    names = [await upload(world, line(n)) for n in range(3)]
    listed = await world.get(f"{FILES}?limit=2&order=asc")
    check_exchange(FILES, "get", listed)
    assert ([one["id"] for one in listed.json()["data"]], listed.json()["has_more"]) == (names[:2], True)
    rest = (await world.get(f"{FILES}?after={names[1]}&order=asc&purpose=batch")).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"], rest["last_id"]) == (names[2:], False, names[2])
    one = (await world.get(f"{FILES}/{names[0]}")).json()
    content = (await world.get(f"{FILES}/{names[0]}/content")).body
    assert (content, len(content), one["filename"]) == (jsonl([line(0)]), one["bytes"], "in.jsonl")
    assert (await world.begin("DELETE", f"{FILES}/{names[0]}").end()).json()["deleted"]
    for method, path in ("GET", ""), ("GET", "/content"), ("DELETE", ""):
        assert (await world.begin(method, f"{FILES}/{names[0]}{path}").end()).failure == (404, "not_found")


async def test_a_long_file_is_read_as_it_was_sent(world: World) -> None:
    content = jsonl(line(n, prompt="x" * 300_000) for n in range(3))
    name = await upload(world, content)
    assert (await world.get(f"{FILES}/{name}/content")).body == content


async def test_owners_do_not_meet() -> None:
    async with open_world(api_keys=KEYS) as owned:
        name = await create(owned, line("a"), headers=ANN)
        batch = await ended(owned, name, headers=ANN)
        (request,) = (await owned.get(f"/v1/requests?session={name}", headers=ANN)).json()["data"]
        assert request["owner"] == "ann"
        for path in (f"{BATCHES}/{name}", *(f"{FILES}/{batch[f'{one}_file_id']}" for one in ("input", "output"))):
            assert (await owned.get(path, headers=ANN)).status == 200
            assert (await owned.get(path, headers=BOB)).failure == (404, "not_found")
            assert path.rpartition("/")[2] not in str((await owned.get(path.rpartition("/")[0], headers=BOB)).json())
        assert (await owned.post(f"{BATCHES}/{name}/cancel", headers=BOB)).failure == (404, "not_found")
        body = {"input_file_id": batch["input_file_id"], "endpoint": COMPLETIONS}
        assert (await owned.post(BATCHES, body, headers=BOB)).refusal == (404, "input_file_id")
        assert (await owned.get(f"{BATCHES}/{name}")).status == 401


@pytest.mark.parametrize("expires", [False, True])
async def test_a_batch_that_is_cancelled_or_expires_keeps_its_results(world: World, expires: bool) -> None:
    world.hold()
    lines = (line("short"), *(line(n, max_tokens=900) for n in range(6)))
    name = await create(world, *lines, completion_window="3s" if expires else "24h")
    await until_first_result(world, name)
    if expires:
        await let_cancelled_end(world, name)
        batch = await ended(world, name)
        assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 7, "completed": 1, "failed": 6})
        assert {one["error"]["code"] for one in (await results(world, batch, "error")).values()} == {"batch_expired"}
        return
    file_id = (await get(world, name))["input_file_id"]
    assert (await world.begin("DELETE", f"{FILES}/{file_id}").end()).failure == (400, "file_in_use")
    answer = world.begin("POST", f"{BATCHES}/{name}/cancel")
    await let_cancelled_end(world, name)
    await answer.end()
    check_exchange(f"{BATCHES}/{{batch_id}}/cancel", "post", answer)
    assert answer.json()["status"] in ("cancelling", "cancelled")
    batch = await ended(world, name)
    assert (batch["status"], batch["request_counts"]) == ("cancelled", {"total": 7, "completed": 1, "failed": 0})
    assert list(await results(world, batch, "output")) == ["short"]
    reasons = [one["cancel_reason"] for one in await world.requests(f"?session={name}")]
    assert sorted(map(str, reasons)) == ["None", "explicit", "explicit", "explicit"]
    assert (await world.post(f"{BATCHES}/{name}/cancel")).json() == batch
    assert (await world.get(f"{BATCHES}?limit=1")).json()["data"] == [batch]


@pytest.mark.parametrize(
    ("change", "status", "output", "errors"),
    [
        ({}, "completed", ["0", "1", "2", "3"], ["None"]),
        ({"status": "cancelling"}, "cancelled", ["0"], ["None"]),
        ({"expires_at": 1}, "expired", ["0"], ["1", "2", "3", "None"]),
    ],
)
async def test_a_batch_outlives_its_server(
    tmp_path: Path, change: dict[str, Any], status: str, output: list[str], errors: list[str]
) -> None:
    storage = Storage(tmp_path / "store.db")
    async with open_world(storage=storage, parallel=1) as world:
        world.hold()
        name = await create(world, b"{", line(0), *(line(n, max_tokens=60) for n in range(1, 4)))
        await until_first_result(world, name)
        before = await get(world, name)
        await world.app.state.batches.close()
        await asyncio.wrap_future(world.app.state.batches.store.save("", before | change))
    async with open_world(storage=storage) as world:
        await world.app.state.batches.go_on()
        batch = await ended(world, name)
        found = [sorted(map(str, await results(world, batch, which))) for which in ("output", "error")]
        assert (batch["status"], found) == (status, [output, errors])


async def test_a_line_for_which_there_is_no_room_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    refused = asyncio.Event()
    ask = RunningBatch._ask

    async def noted(self: RunningBatch, body: bytes) -> Answered:
        answer = await ask(self, body)
        statuses.append(answer.status)
        refused.set()
        return answer

    monkeypatch.setattr(RunningBatch, "_ask", noted)
    async with open_world(parallel=1, max_queue=1) as world:
        world.hold()
        first = await world.submitted("first", max_tokens=1)
        await world.held()
        second = await world.submitted("second", max_tokens=1, priority="idle")
        name = await create(world, line("a"))
        async with asyncio.timeout(LIMIT):
            await refused.wait()
        world.gate.open()
        await first.end(), await second.end()
        batch = await ended(world, name)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 1)
    assert statuses == [429, 200]


async def test_a_store_without_room_fails_the_batch_and_keeps_its_results() -> None:
    lines = [line(n) for n in range(8)]
    async with open_world(storage=Storage(None, 1e6, len(jsonl(lines)) + 3_000)) as world:
        batch = await ended(world, await create(world, *lines))
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "storage_full")
        kept = await results(world, batch, "output")
        assert len(kept) == batch["request_counts"]["completed"] > 0
