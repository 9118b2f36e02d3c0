"""Messages between replicas by Ray's broadcast, of which a stand-in is used here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyllmcancel.ray import transport as module
from pyllmcancel.ray.transport import METHOD, UNKNOWN, BroadcastTransport
from pyllmcancel.server.fleet.messages import ListSessions, News
from pyllmcancel.server.fleet.transport import Answer

pytestmark = pytest.mark.anyio
MESSAGE = ListSessions(owner="ann")
Hear = Callable[[str, Any], Coroutine[Any, Any, tuple[str, Any]]]


class Result:
    def __init__(self, answering: Coroutine[Any, Any, Any]) -> None:
        self._answering = answering

    async def get_async(self) -> Any:
        return await self._answering


class Broadcast:
    def __init__(self, results: list[Result]) -> None:
        self._results = results

    async def _fetch_replica_results_async(self) -> list[Result]:
        return self._results


class Handle:
    """Broadcasts to functions."""

    def __init__(self, *replicas: Hear) -> None:
        self.replicas = list(replicas)

    def broadcast(self, method_name: str, *args: Any) -> Broadcast:
        assert method_name == METHOD
        return Broadcast([Result(replica(*args)) for replica in self.replicas])


def replica(name: str, said: list[Any]) -> Hear:
    """One that keeps what it is told."""

    async def hear(sender: str, message: Any) -> tuple[str, Any]:
        if sender == name:
            return name, None
        said.append(message)
        return name, {"newer": [], "by": name}

    return hear


async def fails(_sender: str, _message: Any) -> tuple[str, Any]:
    raise RuntimeError("a trace\nof many lines\nit broke")


async def hangs(_sender: str, _message: Any) -> tuple[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def test_all_others_answer_by_their_names() -> None:
    said: list[Any] = []
    ways = BroadcastTransport(Handle(replica("a", said), replica("me", said), replica("b", said)), "me")
    answers = await ways.ask_all(MESSAGE)
    assert {answer.replica: answer.reply and answer.reply["by"] for answer in answers} == {"a": "a", "b": "b"}
    assert said == [MESSAGE.model_dump(mode="json")] * 2


async def test_one_that_fails_or_hangs_takes_nobodys_answer_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.05)
    said: list[Any] = []
    answers = await BroadcastTransport(Handle(replica("a", said), fails, hangs), "me").ask_all(MESSAGE)
    assert sorted((answer.replica, answer.error or "") for answer in answers) == [
        ("a", ""),
        (UNKNOWN, "it broke"),
        (UNKNOWN, "no answer in time"),
    ]


async def test_where_ray_cannot_broadcast_there_is_one_answer_that_says_so() -> None:
    class Broken(Handle):
        def broadcast(self, method_name: str, *args: Any) -> Broadcast:
            raise RuntimeError("no controller")

    assert await BroadcastTransport(Broken(), "me").ask_all(MESSAGE) == [Answer(UNKNOWN, error="no controller")]


async def test_one_that_is_alone_has_nobody_to_ask() -> None:
    assert await BroadcastTransport(Handle(), "me").ask_all(MESSAGE) == []


async def test_news_arrive_and_the_answers_are_heard() -> None:
    said: list[Any] = []
    heard: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
    ways = BroadcastTransport(Handle(replica("a", said), replica("me", said)), "me")
    ways.start(heard.set_result)
    ways.tell_all(News(owner="ann", key="file", arrived_us=1, id="x"))
    assert [answer.replica for answer in await asyncio.wait_for(heard, 30)] == ["a"]
    await ways.close()
    await ways.close()
    (message,) = said
    assert message["news"] == [{"owner": "ann", "key": "file", "arrived_us": 1, "id": "x"}]
