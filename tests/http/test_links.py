"""The link of a request to a front: its frames, and the commands that the front writes after the request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from pyllmcancel.front.link import Frames
from pyllmcancel.server.behind import ACCEPTED, BODY, CLOSED, END, ENDED, OPENED, START, STATE
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

HEADERS = {"x-worker-key": "the-key", "x-front-owner": "00ann", "x-front-link": "1", "x-request-id": "mine"}


class Line:
    """A connection to a front, as `pyllmcancel.server.http.connection.Connection` is one."""

    def __init__(self, commands: bytes = b"") -> None:
        self.ahead = commands
        self.on_ahead: Callable[[], object] = lambda: None
        self.exchange: Exchange  # set by `begun`
        self.frames: list[tuple[bytes, Any]] = []
        self._decoder = Frames()
        self.keeps_up = True

    def write(self, data: bytes) -> bool:
        content = data.removeprefix(OPENED)
        self.frames += [
            (kind, content if kind == BODY else read(content)) for kind, content in self._decoder.feed(content)
        ]
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
        """Return the content of the first frame of this kind."""
        async with asyncio.timeout(30.0):
            while not (found := [content for one, content in self.frames if one == kind]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return found[0]

    @property
    def kinds(self) -> list[bytes]:
        return [kind for kind, _ in self.frames if kind != STATE]


def read(content: bytes) -> Any:
    return json.loads(content) if content else None


def over(line: Line, world: World) -> ASGIApp:
    """Return the application of a worker, with a front's connection."""

    async def with_connection(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"connection": line}
        await world.app(scope, receive, send)

    return with_connection


@asynccontextmanager
async def begun(line: Line, **fields: Any) -> AsyncIterator[World]:
    """A worker that computes a request, whose front closes the link in the end."""
    async with open_world(worker_key="the-key", stream_keep=60.0) as world:
        world.hold()
        body = json.dumps({"prompt": "hello", "max_tokens": 100} | fields).encode()
        headers = HEADERS | {"content-type": "application/json"}
        line.exchange = Exchange(over(line, world), "POST", "/v1/completions", body=body, headers=headers)
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


@pytest.mark.parametrize("reason", ["explicit", "superseded", "deadline"])
async def test_a_command_cancels_a_request_for_its_reason(reason: str) -> None:
    line = Line()
    async with begun(line, stream=True) as world:
        await world.held()
        line.command(reason.encode())
        world.gate.open()
        await line.until(END)
        told = await line.until(ENDED)
        assert (told["finish_reason"], told["reason"]) == ("cancelled", reason)
        # The answer's last words, and its end, are written later.
        assert line.kinds[-3:] == [ENDED, BODY, END]


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


async def test_a_stream_that_is_kept_goes_on_when_its_client_has_left() -> None:
    line = Line()
    async with begun(line, stream=True, keep_going=True, max_tokens=3) as world:
        await world.held()
        line.command(b"left")
        world.gate.open()
        await line.until(CLOSED)
        assert (await line.until(ENDED))["finish_reason"] == "length"


async def test_the_body_that_comes_with_the_leaving_of_its_client_is_not_lost() -> None:
    line = Line()
    async with open_world(worker_key="the-key", stream_keep=60.0) as world:
        body = json.dumps({"prompt": "hello", "max_tokens": 3, "stream": True, "keep_going": True}).encode()
        headers = HEADERS | {"content-type": "application/json"}
        line.exchange = Exchange(over(line, world), "POST", "/v1/completions", body=None, headers=headers)
        line.exchange.body_arrives(body[:9], more=True)
        await asyncio.sleep(0)  # the rest is waited for
        line.ahead = b"left\n"
        line.exchange.body_arrives(body[9:])
        line.on_ahead()
        assert (await line.until(ENDED))["finish_reason"] == "length"
        await line.exchange.left()


async def test_a_response_that_begins_anew_takes_the_place_of_what_is_stored_of_it() -> None:
    asked, path = {"input": "hello", "max_output_tokens": 2}, "/v1/responses"
    plain = {name: value for name, value in HEADERS.items() if name != "x-front-link"}
    async with open_world(worker_key="the-key") as world:
        for status in (200, 400):
            assert (await world.post(path, asked, headers=plain)).status == status
        before = (await world.get(f"{path}/resp_mine", headers=plain)).json()
        line, headers = Line(), HEADERS | {"x-front-again": "1", "content-type": "application/json"}
        body = json.dumps(asked | {"max_output_tokens": 3}).encode()
        line.exchange = Exchange(over(line, world), "POST", path, body=body, headers=headers)
        assert (await line.until(START))[0] == 200
        await line.until(END)
        await line.exchange.left()
        after = (await world.get(f"{path}/resp_mine", headers=plain)).json()
        assert [one["usage"]["output_tokens"] for one in (before, after)] == [2, 3]
        assert (await world.post(path, asked, headers=plain | {"x-front-again": "1"})).status == 400
