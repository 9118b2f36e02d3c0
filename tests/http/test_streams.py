"""Streams that go on when their readers leave, and are read again from any place."""

import asyncio
import json
import random
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.server import generate
from pyllmcancel.server.streams import kept as kept_module
from pyllmcancel.server.streams.kept import KeptAnswer
from tests.support.chat_models import Says
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import World, open_world, unnamed

NAME = "conversation/1::model:Q8"
ENDED = "data: [DONE]\n\n"


def ask(world: World, request_id: str = "mine", conversation: str | None = NAME, **fields: Any) -> Exchange:
    headers = {"x-request-id": request_id} | fields.pop("headers", {})
    if conversation is not None:
        headers["x-conversation-id"] = conversation
    fields = {"stream": True, "max_tokens": 6, "temperature": 0, "ignore_eos": True} | fields
    return world.complete(headers=headers, **fields)


def read(world: World, name: str = NAME, start: int | str = 0, **options: Any) -> Exchange:
    return world.begin("GET", f"/v1/stream/{name}?from={start}", **options)


async def delete(world: World, name: str = NAME, **options: Any) -> int:
    return (await world.begin("DELETE", f"/v1/stream/{name}", **options).end()).status


def found(world: World, name: str = NAME, owner: str = NO_OWNER) -> KeptAnswer:
    kept = world.app.state.server.streams.find(owner, name)
    assert kept is not None
    return kept


async def written(world: World, name: str = NAME) -> bytes:
    return (await read(world, name).end()).body


async def begun(world: World, **fields: Any) -> Exchange:
    """A stream of which the first event was read. Steps are held."""
    world.hold()
    first = ask(world, **fields)
    await world.step(2)
    return await first.until_body(b"data: ")


# -- leaving is not cancelling ----------------------------------------------------------------------------------------


async def test_an_answer_goes_on_when_its_reader_leaves_and_is_read_again_as_it_was(world: World) -> None:
    first = await begun(world)
    await first.left()
    world.gate.open()
    again = (await read(world).end()).body
    assert again.startswith(first.body)
    assert again.decode().endswith(ENDED)
    assert (await world.ended("mine"))["status"] == "finished"


async def test_a_client_that_leaves_before_its_submission_finds_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    real = generate.submit

    async def late(*arguments: Any) -> Any:
        entered.set()
        await go_on.wait()
        return await real(*arguments)

    monkeypatch.setattr(generate, "submit", late)
    async with open_world() as world:
        first = ask(world)
        await entered.wait()
        first.leave()
        go_on.set()
        await first.end()
        assert (await written(world)).decode().endswith(ENDED)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/completion"])
async def test_every_streaming_dialect_is_read_again(path: str) -> None:
    bodies: dict[str, Any] = {
        "/v1/responses": {"input": "hello", "max_output_tokens": 5, "store": False},
        "/completion": {"prompt": "hello", "n_predict": 5},
    }
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    async with open_world(model=Says("It is 4.")) as world:
        body = bodies.get(path, chat) | {"stream": True, "keep_going": True}
        first = await world.begin("POST", path, body, headers={"x-request-id": "mine"}).end()
        assert first.status == 200
        assert first.body == await written(world, "mine")
        assert first.events


# -- reading ----------------------------------------------------------------------------------------------------------


async def test_any_number_of_readers_read_from_any_place_live(world: World) -> None:
    first = await begun(world)
    n_sent = len(first.body)
    readers = [read(world, start=place) for place in (0, 1, n_sent - 1, n_sent)]
    for reader in readers:
        await reader.until_headers()
    world.gate.open()
    for exchange in (first, *readers):
        await exchange.end()
    for reader, place in zip(readers, (0, 1, n_sent - 1, n_sent), strict=True):
        assert reader.body == first.body[place:]
        assert reader.headers["content-type"].startswith("text/event-stream")


async def test_the_name_may_be_in_the_query_as_in_llama_server(world: World) -> None:
    first = await ask(world).end()
    query = "conv_id=conversation%2F1%3A%3Amodel%3AQ8"
    for start in (3, len(first.body)):
        assert (await world.get(f"/v1/stream?{query}&from={start}")).body == first.body[start:]
    assert (await world.begin("DELETE", f"/v1/stream?{query}").end()).status == 204
    assert (await world.get(f"/v1/stream?{query}")).status == 404


async def test_unknown_streams_are_not_found_and_an_answer_in_one_piece_has_none(world: World) -> None:
    assert (await ask(world, stream=False).end()).status == 200
    for name in ("unknown", NAME):
        assert (await read(world, name).end()).failure == (404, "stream_not_found")
    assert (await read(world, "x" * 9_000).end()).status == 400
    assert (await world.get("/v1/stream")).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"conversation": name}, "X-Conversation-Id") for name in ("x" * 257, " x", "a\tb")]
    + [({"conversation": None} | one, "keep_going") for one in ({"keep_going": 0}, {"keep_going": "yes"})]
    + [({"conversation": None, "keep_going": True, "stream": False}, "keep_going")],
)
async def test_an_answer_that_cannot_be_kept_is_not_computed(world: World, fields: dict[str, Any], param: str) -> None:
    assert (await ask(world, **fields).end()).refusal == (400, param)
    assert await world.requests() == []


async def test_a_server_can_keep_nothing() -> None:
    async with open_world(stream_keep=0.0) as world:
        exchange = await ask(world, conversation=None, keep_going=True).end()
        assert (exchange.status, exchange.headers["x-ignored-fields"]) == (200, "keep_going")
        assert (await ask(world, "other").end()).status == 200
        for name in (NAME, "mine", "other"):
            assert (await read(world, name).end()).status == 404


# -- endings ----------------------------------------------------------------------------------------------------------


async def unread(world: World, **fields: Any) -> None:
    """A stream that goes on without a reader, its step held."""
    await (await begun(world, **fields)).left()
    await world.held()


async def check_broken_off(world: World, reader: Exchange, reason: CancelReason) -> None:
    await reader.end()
    assert reader.json_events()[-1]["error"]["code"] == reason
    assert ENDED not in reader.body.decode()
    entry = await world.ended("mine")
    assert (entry["status"], entry["cancel_reason"]) == ("cancelled", reason)


@pytest.mark.parametrize("reason", [CancelReason.EXPLICIT, CancelReason.DEADLINE, CancelReason.SHUTDOWN])
async def test_whatever_ends_it_its_readers_are_told_now_and_later(world: World, reason: CancelReason) -> None:
    await unread(world, timeout=60)
    reader = await read(world).until_body(b"data: ")
    await world.bring_about(reason)
    await world.cancelling("mine")
    world.gate.open()
    await check_broken_off(world, reader, reason)
    await check_broken_off(world, read(world), reason)


async def test_deleting_cancels_and_forgets_it_and_its_readers_are_told(world: World) -> None:
    await unread(world)
    reader = await read(world).until_body(b"data: ")
    deleting = world.begin("DELETE", f"/v1/stream/{NAME}")
    await world.cancelling("mine")
    assert (await read(world).end()).status == 404
    assert (await deleting.end()).status == 204
    assert (await world.request("mine"))["times"]["ended"] is not None
    world.gate.open()
    await check_broken_off(world, reader, CancelReason.EXPLICIT)
    assert await delete(world) == 204


async def test_nobody_who_reads_for_long_cancels_it() -> None:
    async with open_world(stream_keep=600.0) as world:
        await unread(world)
        kept = found(world)
        assert kept._seconds == 600.0
        kept._seconds = 0.0  # only now: its held step must be there before
        with kept.reading():
            pass
        await world.cancelling("mine")
        world.gate.open()
        await asyncio.wait_for(kept.stopped(), LIMIT)
        assert (await world.request("mine"))["cancel_reason"] == "disconnect"


async def test_a_reader_that_comes_back_in_time_keeps_it_alive(world: World) -> None:
    await unread(world)
    kept = found(world)
    kept._seconds = 0.0  # from now on every moment without a reader is too long
    with kept.reading():
        await asyncio.sleep(0.01)  # the event loop's timers have had their turn
        assert not kept.request.cancellation.requested
        reader = await read(world).until_body(b"data: ")
    world.gate.open()
    await reader.end()
    assert reader.body.decode().endswith(ENDED)


async def test_it_is_forgotten_when_it_has_been_kept_long_enough(world: World) -> None:
    gone = asyncio.Event()
    streams = world.app.state.server.streams
    forget = streams.forget

    def forgotten(kept: KeptAnswer) -> None:
        forget(kept)
        gone.set()

    streams.forget = forgotten
    await ask(world, conversation=None, keep_going=0.01).end()
    await asyncio.wait_for(gone.wait(), LIMIT)
    assert (await read(world, "mine").end()).status == 404


# -- superseding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("headers", "by"), [({}, "newer"), ({"x-supersede": "a key of its own"}, None)])
async def test_a_conversations_newer_request_supersedes(world: World, headers: dict[str, str], by: str | None) -> None:
    await unread(world)
    reader = await read(world).until_body(b"data: ")
    newer = ask(world, "newer", headers=headers)
    await world.cancelling("mine")
    world.gate.open()
    await newer.end()
    await check_broken_off(world, reader, CancelReason.SUPERSEDED)
    assert (await world.request("mine"))["superseded_by"] == by
    assert await written(world) == newer.body
    assert (await read(world, "mine").end()).status == 404


async def test_a_request_that_is_refused_leaves_the_older_one_alone(world: World) -> None:
    await unread(world)
    assert (await ask(world, "newer", max_tokens="x").end()).status == 400
    assert (await ask(world, "newer", prompt="word " * 5_000).end()).status == 400
    assert not found(world).request.cancellation.requested
    world.gate.open()
    assert (await written(world)).decode().endswith(ENDED)


# -- bounds -----------------------------------------------------------------------------------------------------------


async def test_of_a_long_answer_the_oldest_bytes_are_dropped_in_whole_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MAX_STREAM_BYTES", 1_000)
    async with open_world() as world:
        first = ask(world, max_tokens=40)
        await first.until_body(b"data: ")
        kept = found(world)
        await kept.written()
        assert kept.log.begin > 0
        assert kept.log.end - kept.log.begin <= 1_000
        assert (await read(world).end()).failure == (400, "offset_lost")
        rest = await read(world, start=kept.log.begin).end()
        assert len(rest.body) == kept.log.end - kept.log.begin
        assert all(event.startswith(b"data: ") for event in rest.body.removesuffix(b"\n\n").split(b"\n\n"))
        assert rest.body.decode().endswith(ENDED)
        await first.end()  # it may have been too slow


async def test_a_reader_that_is_too_slow_gets_an_error_and_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MAX_STREAM_BYTES", 1_000)
    async with open_world() as world:
        slow = await begun(world, max_tokens=60)
        slow.stop_reading()
        world.gate.open()
        await asyncio.wait_for(found(world).stopped(), LIMIT)
        await found(world).written()
        slow.read_on()
        await slow.end()
        assert slow.json_events()[-1]["error"]["code"] == "offset_lost"
        assert ENDED not in slow.body.decode()
        assert (await world.request("mine"))["status"] == "finished"


async def test_too_many_that_go_on_are_refused_and_ended_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.server.state.MAX_STREAMS", 2)
    async with open_world() as world:
        await ask(world, "ended", "a", max_tokens=1).end()
        await unread(world)
        waiting = ask(world, "waiting", "b")
        await world.added("waiting")
        assert (await read(world, "a").end()).status == 404
        assert (await ask(world, "refused", "c").end()).failure == (429, "too_many_streams")
        world.gate.open()
        await waiting.end()
        await written(world)
        assert (await ask(world, "later", "c").end()).status == 200


# -- owners -----------------------------------------------------------------------------------------------------------


async def test_a_stream_is_its_owner_s() -> None:
    mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("key-a", "key-b"))
    async with open_world(api_keys=unnamed("key-a", "key-b")) as world:
        first = await begun(world, headers=mine)
        assert (await read(world, headers=theirs).end()).status == 404
        assert await delete(world, headers=theirs) == 204
        asked = {"conversation_ids": [NAME, "mine"]}
        assert (await world.post("/v1/streams/lookup", asked, headers=theirs)).json() == []
        other = ask(world, "other", headers=theirs)
        await world.added("other")
        world.gate.open()
        await other.end()
        await first.end()
        assert first.body.decode().endswith(ENDED)
        assert (await read(world, headers=mine).end()).body == first.body


# -- looking ----------------------------------------------------------------------------------------------------------


async def test_lookup_tells_of_the_streams_of_known_conversations(world: World) -> None:
    first = await ask(world).end()
    (entry,) = (await world.post("/v1/streams/lookup", {"conversation_ids": ["conversation/1", "x"]})).json()
    assert 0 < entry.pop("started_at") <= entry.pop("completed_at")
    sizes = {"total_bytes": len(first.body), "dropped_bytes": 0}
    assert entry == {"conversation_id": NAME, "request_id": "mine", "is_done": True, "readers": 0} | sizes
    assert (await world.post("/v1/streams/lookup", {"conversation_ids": []})).json() == []
    assert (await world.post("/v1/streams/lookup", {"conversation_ids": "x"})).status == 400


async def test_requests_and_metrics_show_that_nobody_reads(world: World) -> None:
    await unread(world)
    (entry,) = await world.requests()
    assert entry["readers"] == 0
    assert "pyllmcancel_streams_unread 1.0" in (await world.get("/metrics")).body.decode()
    reader = await read(world).until_headers()
    assert (await world.request("mine"))["readers"] == 1
    world.gate.open()
    await reader.end()
    shown = (await world.get("/metrics")).body.decode()
    assert "pyllmcancel_streams_unread 0.0" in shown
    assert "pyllmcancel_streams_kept 1.0" in shown


async def test_an_unexpected_failure_ends_the_stream_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect")

    async with open_world() as world:
        monkeypatch.setattr("pyllmcancel.server.openai.completion_answer.CompletionDialect.chunks", fails)
        world.hold()
        asked = ask(world, max_tokens=200)
        await world.step()  # the next one is aborted
        assert json.loads((await asked.end()).events[-1])["error"]["code"] == "internal_error"
        assert (await world.ended("mine"))["status"] == "cancelled"


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_in_whatever_order_every_request_ends_once_and_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    async with open_world(n_ctx=4096, max_queue=64) as world:
        readers: list[Exchange] = []
        for n in range(40):
            name = f"talk {chance.randrange(3)}"
            match chance.randrange(7):
                case 0 | 1:
                    readers.append(ask(world, f"request-{n}", name, max_tokens=chance.choice((1, 20, 400))))
                case 2:
                    readers.append(read(world, name))
                case 3 if readers:
                    chance.choice(readers).leave()
                case 4:
                    assert await delete(world, name) == 204
                case 5:
                    await world.post(f"/v1/requests/request-{chance.randrange(n + 1)}/cancel")
                case _:
                    await asyncio.sleep(0)
        for reader in readers:
            await reader.end()
            ends = [event for event in reader.events if event == "[DONE]" or "error" in json.loads(event)]
            assert ends in ([], reader.events[-1:]), "an end comes once, and last"
        streams = world.app.state.server.streams
        for kept in list(streams):
            await asyncio.wait_for(kept.stopped(), LIMIT)
            assert await delete(world, kept.name) == 204
        assert all(entry["finish_reason"] for entry in await world.requests())
        assert [*streams] == []
        assert streams._shares._held == {}
