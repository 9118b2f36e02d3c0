"""The long soak's fillers: the requests that fill a server's lists compute nothing, and events are kept meanwhile."""

from __future__ import annotations

import asyncio

from bench.scenarios.soak_filling import fill_lists, reading
from tests.support.http_process import ServerProcess, until


def kept(server: ServerProcess) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("pyllmcancel_events_kept "))


def test_each_request_has_a_session_and_is_cancelled_on_arrival(server: ServerProcess) -> None:
    with reading(server.port):
        asyncio.run(fill_lists(server.port, "test", 3))
        ended = [
            one for one in server.http.get("/v1/requests").json()["data"] if one["parent_session"] == "filling test"
        ]
        assert {one["session"] for one in ended} == {f"filling test {number}" for number in range(3)}
        assert {one["supersede"] for one in ended} == {one["session"] for one in ended}
        assert {(one["status"], one["cancel_reason"], one["prompt_tokens_done"]) for one in ended} == {
            ("cancelled", "explicit", 0)
        }
        until(lambda: kept(server), lambda n_events: n_events >= 3 * len(ended))
