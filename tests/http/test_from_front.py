"""A worker and its front: whom it believes, what the front asks it, and the link of a request."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from pyllmcancel.front.link import Frames
from pyllmcancel.server import from_front
from pyllmcancel.server.behind import ACCEPTED, BODY, CLOSED, END, ENDED, OPENED, START, STATE
from pyllmcancel.server.config import ApiKey
from tests.http.test_responses_stored import create
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import World, open_world

KEY = {"x-worker-key": "the-key"}
MESSAGES = "/v1/worker"
ASKS = {"owner": "", "id": "x", "items": True}


def front(owner: str, *, is_admin: bool = False, sees_all: bool = False) -> dict[str, str]:
    """The headers of a front for a request of this owner."""
    return KEY | {"x-front-owner": f"{is_admin:d}{sees_all:d}{owner}"}


@asynccontextmanager
async def open_worker(**options: Any) -> AsyncIterator[World]:
    async with open_world(worker_key="the-key", **options) as world:
        yield world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_worker() as opened:
        yield opened


async def listed(world: World, headers: dict[str, str]) -> list[str]:
    return [one["id"] for one in (await world.get("/v1/requests", headers=headers)).json()["data"]]


async def ask(world: World, request_id: str, **fields: Any) -> Any:
    answer = await world.served(MESSAGES, {"owner": "ann", "id": request_id} | fields, headers=KEY)
    return answer.json()


async def test_a_front_says_whose_a_request_is_and_what_its_sender_may_see(world: World) -> None:
    for owner in ("ann", "bob"):
        answer = await world.complete(headers=front(owner) | {"x-request-id": f"of-{owner}"}, max_tokens=1).end()
        assert answer.status == 200
    assert await listed(world, front("ann")) == ["of-ann"]
    assert sorted(await listed(world, front("root", is_admin=True, sees_all=True))) == ["of-ann", "of-bob"]
    for headers, status in ((front("ann"), 403), (front("ann", sees_all=True), 200)):
        assert (await world.get("/metrics", headers=headers)).status == status
        assert (await world.get("/v1/steps", headers=headers)).status == status


@pytest.mark.parametrize(("is_admin", "sees_all"), [(False, True), (False, False), (True, True)])
async def test_a_worker_learns_from_its_front_that_there_are_several_owners(*, is_admin: bool, sees_all: bool) -> None:
    async with open_worker() as world:
        await world.get("/v1/requests", headers=front("ann", is_admin=is_admin, sees_all=sees_all))
        assert world.app.state.server.keys.owners.several == (is_admin or not sees_all)


async def test_without_the_key_nobody_is_believed_and_only_clients_with_api_keys_are_served() -> None:
    forged = front("ann") | {"x-worker-key": "another", "x-front-link": "1", "x-arrived": "1.0"}
    async with open_worker() as world:
        assert (await world.get("/health")).json() == {"status": "ok", "waiting": 0, "running": 0}
        told = (await world.get("/health", headers=KEY)).json()
        assert set(told) == {"status", "waiting", "running", "slots", "now", "boot"}
        for headers in ({}, forged):
            assert (await world.complete(headers=headers).end()).status == 401
            assert (await world.post(MESSAGES, ASKS, headers=headers)).status == 401
    async with open_worker(api_keys=(ApiKey("bob", "key-b"),)) as world:
        answer = await world.complete(headers=forged | {"authorization": "Bearer key-b", "x-request-id": "mine"}).end()
        assert "x-front-link" not in answer.headers
        assert await listed(world, front("bob")) == ["mine"]
        assert await listed(world, front("ann")) == []


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [
        ("GET", None, 400),
        ("POST", b"{", 400),
        ("POST", {"kind": "no"}, 400),
        ("POST", ASKS | {"more": 1}, 400),
        ("POST", ASKS | {"part": {"items": [{}], "missing": None}}, 400),
        ("POST", ASKS | {"part": {"items": [], "missing": "x"}}, 400),
        ("POST", b"x" * 100, 413),
    ],
)
async def test_what_is_no_message_is_refused(
    world: World, method: str, body: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_front, "MAX_BODY", 99)
    answer = await world.begin(method, MESSAGES, body, headers=KEY).end()
    assert answer.status == status
    assert "message" in answer.json()["error"]


async def test_a_part_of_a_conversation_is_handed_over_and_used_once() -> None:
    async with open_worker() as one, open_worker() as other:
        made = await create(one, "first", input="hello", headers=front("ann"))
        assert await ask(other, made["id"], items=True) == {"items": [], "missing": made["id"]}
        assert await ask(one, made["id"], items=False) == {"items": [], "missing": None}
        part = await ask(one, made["id"], items=True)
        assert len(part["items"]) == 2
        await ask(other, made["id"], part=part)
        after = {"previous_response_id": made["id"], "input": "and"}
        assert (await create(other, "second", headers=front("ann"), **after))["previous_response_id"] == made["id"]
        error = await create(other, "third", 404, headers=front("ann"), **after)
        assert error["code"] == "previous_response_not_found"


async def test_a_conversation_that_is_too_long_stays_where_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.server.responses.stored.MAX_TO_WORKERS", 10)
    made = await create(world, "first", input="hello", headers=front("ann"))
    message = {"owner": "ann", "id": made["id"], "items": True}
    assert (await world.post(MESSAGES, message, headers=KEY)).failure == (400, "elsewhere")


# -- the link of a request: its frames, and the commands that the front writes -----------------------------------------


HEADERS = front("ann") | {"x-front-link": "0", "x-request-id": "mine"}


class Line:
    """A connection to a front, as `pyllmcancel.server.http.connection.Connection` is one."""

    def __init__(self, commands: bytes = b"", *, waits: bool = False) -> None:
        self.ahead = commands
        self.waits = waits  # with the body
        self.on_ahead: Callable[[], object] = lambda: None
        self.exchange: Exchange  # set by `begun`
        self.frames: list[tuple[bytes, Any]] = []
        self._decoder = Frames()
        self.keeps_up = True

    def write(self, data: bytes) -> bool:
        content = data.removeprefix(OPENED)
        for kind, part in self._decoder.feed(content):
            self.frames.append((kind, part if kind == BODY else json.loads(part or b"null")))
        return True

    def command(self, command: bytes) -> None:
        self.ahead += command + b"\n"
        self.on_ahead()

    def wake(self) -> None:
        self.exchange.body_arrives(b"")

    async def drain(self) -> None: ...

    def drop(self) -> None: ...

    def has_left(self) -> bool:
        return False

    @contextmanager
    def answering(self, _cancel: object) -> Iterator[None]:
        yield

    async def until(self, kind: bytes) -> Any:
        async with asyncio.timeout(LIMIT):
            while not (found := [content for one, content in self.frames if one == kind]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return found[0]

    @property
    def kinds(self) -> list[bytes]:
        return [kind for kind, _ in self.frames if kind != STATE]


def over(line: Line, world: World) -> ASGIApp:
    """Return the application of a worker, with a front's connection."""

    async def with_connection(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"connection": line}
        await world.app(scope, receive, send)

    return with_connection


def send(line: Line, world: World, path: str = "/v1/completions", *, again: bool = False, **fields: Any) -> bytes:
    """Have the front send a request over the link; return its body."""
    body = json.dumps({"max_tokens": 100} | fields).encode()
    headers = HEADERS | {"content-type": "application/json"} | ({"x-front-again": "1"} if again else {})
    line.exchange = Exchange(over(line, world), "POST", path, body=None if line.waits else body, headers=headers)
    return body


@asynccontextmanager
async def begun(line: Line, **fields: Any) -> AsyncIterator[World]:
    """A worker that computes a request, whose front closes the link in the end."""
    async with open_worker() as world:
        world.hold()
        send(line, world, prompt="hello", **fields)
        try:
            yield world
        finally:
            world.gate.open()
            await line.exchange.left()


async def test_an_answer_and_its_ending_come_in_frames() -> None:
    line = Line()
    async with begun(line, stream=True, max_tokens=2) as world:
        (names, size, *_) = await line.until(ACCEPTED)
        assert (names, size) == ([None, None, None, 0], [5, 1, 2])
        world.gate.open()
        await line.until(END)
        told = await line.until(ENDED)
        assert (told["finish_reason"], told["reason"]) == ("length", None)
        assert line.kinds[:2] == [ACCEPTED, START]
        assert line.kinds[-2:] == [ENDED, END]


@pytest.mark.parametrize("progress", [False, True])
async def test_a_front_that_reads_no_further_than_the_first_tokens_knows_of_them(*, progress: bool) -> None:
    line = Line()
    async with begun(line, stream=True, max_tokens=5, return_progress=progress) as world:
        line.keeps_up = False  # its client does not read
        for _ in range(3):
            await world.held()
            world.gate.let_through()
        status, *_, n_generated, _drafts, _ahead = await line.until(STATE)
        kinds = [kind for kind, _ in line.frames]
        assert (kinds[kinds.index(STATE) - 1], kinds.count(STATE)) == (BODY, 1)
        assert (status, n_generated > 0) == ("decode", True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reason", ["explicit", "superseded", "deadline", "disconnect"])
async def test_a_command_cancels_a_request_for_its_reason(reason: str, *, stream: bool) -> None:
    line = Line()
    async with begun(line, stream=stream) as world:
        await world.held()
        line.command(reason.encode())
        world.gate.open()
        told = await line.until(ENDED)
        assert (told["finish_reason"], told["reason"]) == ("cancelled", reason)
        await line.until(CLOSED if reason == "disconnect" else END)
        # The answer's last words, and its end, are written later; to a client that has left there are none.
        assert (END in line.kinds) == (reason != "disconnect")
        assert reason == "disconnect" or line.kinds[line.kinds.index(ENDED) :][-2:] == [BODY, END]


async def test_a_command_that_came_with_the_request_is_not_lost() -> None:
    line = Line(b"explicit\n")
    async with begun(line):
        status, _ = await line.until(START)
        assert status == 499
        await line.until(END)
        assert ENDED not in line.kinds


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_has_left_the_front_ends_its_request(*, stream: bool) -> None:
    line = Line()
    async with begun(line, stream=stream) as world:
        await world.held()
        line.command(b"disconnect")
        world.gate.open()
        await line.until(CLOSED)
        told = await line.until(ENDED)
        assert (told["finish_reason"], told["reason"]) == ("cancelled", "disconnect")
        assert END not in line.kinds


async def test_a_stream_is_kept_by_the_front_alone() -> None:
    line = Line()
    async with begun(line, stream=True, keep_going=True, max_tokens=3) as world:
        await world.held()
        assert (await world.get("/v1/stream/mine", headers=front("ann"))).status == 404
        world.gate.open()
        assert (await line.until(ENDED))["finish_reason"] == "length"
        await line.until(END)


async def test_a_request_that_another_server_had_accepted_waits_for_as_long_as_it_must() -> None:
    line = Line()
    async with open_worker(parallel=1, queue_timeout=1e-6, refuse_late=True) as world:
        plain = front("ann") | {"x-request-id": "other"}
        other = await world.computing(max_tokens=9, ignore_eos=True, queue_timeout=1_000.0, headers=plain)
        send(line, world, again=True, prompt="hello", max_tokens=2, timeout=1_000.0)
        await line.until(ACCEPTED)
        world.gate.open()
        await other.end()
        assert (await line.until(ENDED))["finish_reason"] == "length"
        await line.exchange.left()


async def test_a_response_that_begins_anew_takes_the_place_of_what_is_stored_of_it() -> None:
    asked, path = {"input": "hello", "max_output_tokens": 2}, "/v1/responses"
    plain = front("ann") | {"x-request-id": "mine"}
    line = Line()
    async with open_worker() as world:
        for status in (200, 400):
            assert (await world.post(path, asked, headers=plain)).status == status
        before = (await world.get(f"{path}/resp_mine", headers=plain)).json()
        send(line, world, path, again=True, input="hello", max_output_tokens=3)
        assert (await line.until(START))[0] == 200
        await line.until(END)
        await line.exchange.left()
        after = (await world.get(f"{path}/resp_mine", headers=plain)).json()
        assert [one["usage"]["output_tokens"] for one in (before, after)] == [2, 3]
        assert (await world.post(path, asked, headers=plain | {"x-front-again": "1"})).status == 400
