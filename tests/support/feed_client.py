"""A reader of ``GET /v1/events`` in a test's world."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.http_world import World


class Told(NamedTuple):
    """An event as it was sent."""

    id: str
    type: str
    data: dict[str, Any]

    @property
    def boot(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def number(self) -> int:
        return int(self.id.rpartition("-")[2])

    @property
    def request_id(self) -> str | None:
        """The id of the event's request; None for steps and statistics."""
        return self.data.get("id") or self.data.get("request", {}).get("id")


class FeedClient:
    """One reader, whose exchange has begun."""

    def __init__(self, world: World, query: str = "", headers: dict[str, str] | None = None) -> None:
        self.exchange = world.begin("GET", f"/v1/events{query}", headers=headers)

    @property
    def events(self) -> list[Told]:
        """All that have come, pings not counted."""
        blocks = self.exchange.body.decode("ascii").split("\n\n")[:-1]
        return [told(block) for block in blocks if not block.startswith(":")]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    async def until(self, accept: Callable[[list[Told]], object]) -> list[Told]:
        await self.exchange.until(lambda: accept(self.events))
        return self.events

    async def began(self) -> dict[str, Any]:
        """Wait for the snapshot."""
        return (await self.until(bool))[0].data

    async def ended(self, *request_ids: str) -> list[Told]:
        wanted = set(request_ids)
        return await self.until(lambda all_: wanted <= {one.request_id for one in all_ if one.type == "ended"})

    async def leave(self) -> None:
        await self.exchange.left()


def told(block: str) -> Told:
    """One block of the stream: three lines, in this order, but of several snapshots only the last has an id."""
    lines = dict(line.split(": ", 1) for line in block.split("\n"))
    assert list(lines) == ["id", "event", "data"] or list(lines) == ["event", "data"], block
    data = json.loads(lines["data"])
    assert data["type"] == lines["event"]
    return Told(lines.get("id", ""), lines["event"], data)
