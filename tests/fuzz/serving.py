"""A whole server over the fake engine, and exchanges with it from code that is not asynchronous."""

import asyncio
import json
from collections.abc import Coroutine
from functools import cache
from typing import Any, NoReturn, TypeVar

from tests.support.http_asgi import Exchange
from tests.support.http_world import World

T = TypeVar("T")
# A server that answers so has failed: it refuses with 4xx. Not served here: 501; out of time: 504.
FAILED = range(500, 600)
MEANT = {501, 503, 504}


class Serving:
    """A server that has a finished request ``a`` of a session ``s``, and the loop in which it runs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.world = self.run(self._made())

    async def _made(self) -> World:
        world = World(request_timeout=2.0)
        names = {"x-request-id": "a", "x-session-id": "s"}
        await world.complete(max_tokens=1, headers=names, supersede="k").end()
        return world

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.world.close())
        self._runner.close()

    def exchange(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Exchange:
        """One exchange with a client: the server answers, and does not fail."""

        async def ask() -> Exchange:
            sent = {"content-type": "application/json"} | (headers or {})
            return await Exchange(self.world.app, method, path, body=body, headers=sent).end()

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
    if serving.cache_info().currsize:
        serving().close()
        serving.cache_clear()
