"""A whole server over the fake engine, and exchanges with it from code that is not asynchronous.

The server has a peer, which is not there: each message to it gets the reply that a target has chosen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyllmcancel.server.fleet.endpoint import PeerEndpoint
from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.membership import Me
from pyllmcancel.server.fleet.peer_client import FAILURES, NoAnswer, answer_in
from pyllmcancel.server.fleet.transport import Answer
from pyllmcancel.server.http.request_context import RequestContext
from tests.support.http_asgi import Exchange
from tests.support.http_world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

    from pyllmcancel.server.fleet.messages import Message, News

T = TypeVar("T")
# A server that answers so has failed: it refuses with 4xx. Not served here: 501; out of time: 504.
FAILED = range(500, 600)
MEANT = {501, 503, 504}


class OnePeer:
    """A `Transport` to one peer, whose answer to everything is a body that a target has chosen."""

    def __init__(self) -> None:
        self.body = b""
        self.heard: Callable[[list[Answer]], None] = lambda _: None

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        self.heard = heard

    def answer(self) -> Answer:
        try:
            return Answer("other", answer_in(self.body).reply)
        except (*FAILURES, NoAnswer):
            return Answer("other", None, "gave an invalid answer")

    async def ask_all(self, message: Message) -> list[Answer]:
        return [self.answer()]

    def tell_all(self, news: News) -> None: ...

    async def close(self) -> None: ...


class Serving:
    """A server that has a finished request ``a`` of a session ``s``, and the loop in which it runs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.world = self.run(self._made())

    async def _made(self) -> World:
        world = World(request_timeout=2.0)
        state = world.app.state.server
        self.peer, me = OnePeer(), Me(state, "one")
        state.fleet = Fleet(state, self.peer, "one")
        state.fleet.start()
        self.peers_app: ASGIApp = RequestContext(PeerEndpoint(world.app, state.fleet, me, None))
        self.other = me().model_copy(update={"nonce": "other" * 4, "name": "other"}).model_dump()
        names = {"x-request-id": "a", "x-session-id": "s"}
        await world.complete(max_tokens=1, headers=names, supersede="k").end()
        return world

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.world.close())
        self._runner.close()

    def exchange(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, peer: bool = False
    ) -> Exchange:
        """One exchange with a client, or with a peer: the server answers, and does not fail."""

        async def ask() -> Exchange:
            sent = {"content-type": "application/json"} | (headers or {})
            app = self.peers_app if peer else self.world.app
            return await Exchange(app, method, path, body=body, headers=sent).end()

        answer = self.run(ask())
        assert answer.status not in FAILED or answer.status in MEANT, (answer.status, answer.body)
        if answer.status >= 400:
            assert "error" in answer.json()
        elif answer.headers.get("content-type", "").startswith("application/json"):
            json.loads(answer.body, parse_constant=no_number)
        return answer


def no_number(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


@cache
def serving() -> Serving:
    return Serving()


def close() -> None:
    """Stop the server, if one was made."""
    if serving.cache_info().currsize:
        serving().close()
        serving.cache_clear()
