"""Where a replica listens for the others: two of them meet there, and nobody else is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from pyllmcancel.ray.discovery import Told
from pyllmcancel.ray.listener import Listener
from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.discovery import Place
from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.identity import KEY_HEADER
from pyllmcancel.server.fleet.messages import ListRequests
from pyllmcancel.server.http.request_context import PEERS_PATH
from tests.support.http_asgi import LIMIT
from tests.support.http_world import World, open_world

pytestmark = pytest.mark.anyio


def joined(world: World, listener: Listener, name: str, other: Told) -> Fleet:
    """A server as a replica under Ray: one that knows the place of another."""

    async def seek() -> AsyncIterator[set[Place]]:
        host, port, key = other
        yield {Place(Address("http", host, port), key)}

    state = world.app.state.server
    state.fleet = fleet = listener.join(state, seek, name)
    fleet.start()
    return fleet


async def test_two_replicas_meet_and_strangers_are_refused() -> None:
    async with open_world() as one, open_world() as two, httpx.AsyncClient(trust_env=False) as stranger:
        a, b = Listener("127.0.0.1"), Listener("127.0.0.1")
        fleets = [joined(one, a, "a", b.here), joined(two, b, "b", a.here)]
        asking = fleets[0]._transport
        async with asyncio.timeout(LIMIT):
            while True:
                (answer,) = await asking.ask_all(ListRequests(owner=None)) or [None]
                if answer is not None and answer.reply is not None:
                    break
                await asyncio.sleep(0.01)
        assert answer.replica == "b"
        host, port, _ = b.here
        url = f"http://{host}:{port}"
        assert (await stranger.post(f"{url}{PEERS_PATH}", json={})).status_code == 401
        wrong = {KEY_HEADER: a.here[2]}
        assert (await stranger.post(f"{url}{PEERS_PATH}", json={}, headers=wrong)).status_code == 401
        assert (await stranger.get(f"{url}/v1/requests")).status_code == 404
        for fleet, listener in zip(fleets, (a, b), strict=True):
            await fleet.close()
            await listener.close()
            await listener.close()
