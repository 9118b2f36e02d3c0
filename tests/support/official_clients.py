"""The effects that every official client must have on a server, whatever its calls are called."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.support.http_process import ServerProcess

E = TypeVar("E", bound=Exception)
Call = tuple[str, Callable[[], object]]  # of a request's id


async def check_cancelled_task(server: ServerProcess, request_id: str, ask: Coroutine[Any, Any, object]) -> None:
    """A task that asks for something long is cancelled: so is its request."""
    task = asyncio.create_task(ask)
    await asyncio.to_thread(server.wait_for, request_id, completion_tokens=lambda n: n > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    seen = await asyncio.to_thread(server.wait_for, request_id, status="cancelled")
    assert seen["cancel_reason"] == "disconnect"


def superseded(server: ServerProcess, key: str, old: Call, new: Call, kind: type[E]) -> E:
    """The error of the older request of a key. Neither call is made twice."""
    told: list[E] = []

    def ask() -> None:
        try:
            old[1]()
        except kind as error:
            told.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    server.wait_for(old[0], completion_tokens=lambda n: n > 0)
    new[1]()
    asker.join()
    of_key = [entry for entry in server.http.get("/v1/requests").json()["data"] if entry["supersede"] == key]
    # In one turn of the engine both may end, the newer one first: its answer may be known.
    expected = [(new[0], "finished"), (old[0], "cancelled")]
    assert sorted((entry["id"], entry["status"]) for entry in of_key) == sorted(expected)
    (error,) = told
    return error
