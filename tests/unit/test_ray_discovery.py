"""How replicas find each other by Ray's broadcast, of which a stand-in is used here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from pyllmcancel.ray import discovery as module
from pyllmcancel.ray.discovery import METHOD, Discovery, Told
from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.discovery import Place
from tests.support.step_gate import TEST_LIMIT

pytestmark = pytest.mark.anyio
Meet = Callable[[Sequence[Any]], Coroutine[Any, Any, Any]]
A, B, C = (("10.0.0.1", port, f"key {port}") for port in (1, 2, 3))


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

    def __init__(self, *replicas: Meet) -> None:
        self.replicas = list(replicas)

    def broadcast(self, method_name: str, *args: Any) -> Broadcast:
        assert method_name == METHOD
        return Broadcast([Result(replica(*args)) for replica in self.replicas])


def at(told: Told, seen: list[Any] | None = None) -> Meet:
    """A replica that is there; `seen` gets what it is told."""

    async def meet(other: Sequence[Any]) -> Sequence[Any]:
        if seen is not None:
            seen.append(other)
        return list(told)

    return meet


async def fails(_other: Sequence[Any]) -> Any:
    raise RuntimeError("a trace\nof many lines\nit died")


async def hangs(_other: Sequence[Any]) -> Any:
    await asyncio.Event().wait()


def places(*told: Told) -> set[Place]:
    return {Place(Address("http", host, port), key) for host, port, key in told}


async def next_of(found: AsyncIterator[set[Place]]) -> set[Place]:
    async with asyncio.timeout(TEST_LIMIT):
        return await anext(found)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEET_EVERY", 0.01)
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.05)


async def test_each_tells_where_it_is_and_hears_where_the_others_are() -> None:
    seen: list[Any] = []
    found = Discovery(Handle(at(A, seen), at(B, seen), at(C, seen)), B)()
    assert await next_of(found) == places(A, C)
    assert seen == [B] * 3


async def test_one_that_is_alone_finds_nobody_until_another_one_comes() -> None:
    handle = Handle()
    found = Discovery(handle, A)()
    assert await next_of(found) == set()
    handle.replicas = [at(A), at(B)]
    assert await next_of(found) == places(B)


async def test_one_that_tells_of_itself_is_known_without_another_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEET_EVERY", 10 * TEST_LIMIT)
    discovery = Discovery(Handle(), A)
    found = discovery()
    assert await next_of(found) == set()
    assert discovery.meet(list(B)) == A
    assert await next_of(found) == places(B)
    assert discovery.meet(list(A)) == A, "itself"


async def test_one_that_ray_names_no_more_is_forgotten() -> None:
    handle = Handle(at(B), at(C))
    found = Discovery(handle, A)()
    assert await next_of(found) == places(B, C)
    handle.replicas = [at(C)]
    assert await next_of(found) == places(C)


@pytest.mark.parametrize("fault", [fails, hangs])
async def test_one_that_fails_or_hangs_is_not_forgotten_and_takes_nobody_with_it(fault: Meet) -> None:
    handle = Handle(at(B))
    found = Discovery(handle, A)()
    assert await next_of(found) == places(B)
    handle.replicas = [fault, at(C)]
    assert await next_of(found) == places(B, C)


async def test_an_answer_that_ray_has_cancelled_is_none() -> None:
    async def is_cancelled(_other: Sequence[Any]) -> Any:
        raise asyncio.CancelledError

    found = Discovery(Handle(is_cancelled, at(C)), A)()
    assert await next_of(found) == places(C)


async def test_where_ray_cannot_broadcast_that_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Handle):
        broken = True

        def broadcast(self, method_name: str, *args: Any) -> Broadcast:
            if self.broken:
                raise RuntimeError("a trace\nno controller")
            return super().broadcast(method_name, *args)

    handle = Broken(at(B))
    found = Discovery(handle, A)()
    for _ in range(3):
        assert await next_of(found) == set()
    assert caplog.text.count("the other replicas cannot be asked for their addresses: no controller") == 1
    handle.broken = False
    assert await next_of(found) == places(B)


async def test_what_a_later_version_tells_beside_its_place_is_passed_over() -> None:
    async def later(_other: Sequence[Any]) -> Any:
        return [*B, "more"]

    assert await next_of(Discovery(Handle(later), A)()) == places(B)
