"""More replicas, and fewer: what lives stays where it is."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path

import httpx

from tests.support.balancer import Balancer
from tests.support.http_process import RawClient, ServerProcess


def test_12_of_12_live_sessions_stay_when_a_replica_is_added(servers: list[ServerProcess], tmp_path: Path) -> None:
    with Balancer(servers[:2], tmp_path, settle=3_600) as balancer, ExitStack() as clients:
        names = [{"X-Session-Id": f"scaled {i}", "X-Supersede": f"scaled {i}"} for i in range(12)]

        def post(headers: dict[str, str]) -> str:
            return balancer.post(clients.enter_context(RawClient(balancer.port)), headers=headers)

        older = [post(name) for name in names]
        places = [balancer.running(one) for one in older]
        balancer.reload(servers)
        newer = [post(name) for name in names]
        assert [balancer.running(one) for one in newer] == places
        for one, successor in zip(older, newer, strict=True):
            assert balancer.state(one)["superseded_by"] == successor
        # What is new has room on the new one; and what the process before this one began can be cancelled by its id.
        new = [post({"X-Session-Id": f"new {i}"}) for i in range(12)]
        assert "r3" in {balancer.place_of(one) for one in new}
        for one in newer:
            url = f"http://127.0.0.1:{balancer.port}/v1/requests/{one}/cancel"
            assert httpx.post(url, timeout=30).json()["outcome"] == "cancelled"


def test_a_replica_that_drains_keeps_what_lives_and_takes_nothing_new(balancer: Balancer) -> None:
    with ExitStack() as clients:

        def post(session: str) -> str:
            client = clients.enter_context(RawClient(balancer.port))
            return balancer.running(balancer.post(client, headers={"X-Session-Id": session}))

        place = post("live")
        with RawClient(balancer.port) as idle:
            balancer.post(idle, headers={"X-Session-Id": "idle"}, max_tokens=1)
            idle.answer().read()
        balancer.tell(f"set server llm/{place} weight 0")
        assert post("live") == place
        assert place not in {post(f"new {i}") for i in range(6)} | {post("idle")}


def test_an_idle_session_moves_from_a_full_replica_and_its_move_is_counted(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    with Balancer(servers[:2], tmp_path, slots=1, load_factor=101) as balancer, ExitStack() as clients:
        with RawClient(balancer.port) as client:
            balancer.post(client, headers={"X-Session-Id": "idle"}, max_tokens=1)
            answer = client.answer()
            place = answer.headers["x-served-by"]
            answer.read()
        for i in count():
            session = {"X-Session-Id": f"hot {i}"}
            with RawClient(balancer.port) as client:
                here = balancer.running(balancer.post(client, headers=session))
                if here == place:
                    break
        # However many they are, the requests of a session that is live stay together.
        for _ in range(4):
            client = clients.enter_context(RawClient(balancer.port))
            assert balancer.running(balancer.post(client, headers=session)) == place
        with RawClient(balancer.port) as client:
            assert balancer.running(balancer.post(client, headers={"X-Session-Id": "idle"})) != place
        assert balancer.table("sessions").count("gpc0=1") == 1
