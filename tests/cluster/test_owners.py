"""Owners behind the balancer: what one names, another cannot reach, take over or place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.cluster.conftest import started
from tests.support.balancer import Balancer, with_headers
from tests.support.http_process import RawClient, fresh_id, post_bytes, until

ALICE, BOB = {"Authorization": "Bearer alice-key"}, {"Authorization": "Bearer bob-key"}


@pytest.fixture(scope="module")
def locked(program: object, long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balancer]:
    """Two servers that ask for keys, and their balancer."""
    with ExitStack() as stack:
        # What a test asks on its own, without the balancer, is the administrator's.
        keys = ("--api-key", "alice-key,bob-key", "--admin-api-key", "admin-key")
        servers = started(stack, 2, long_model, *keys)
        for server in servers:
            server.http.headers["Authorization"] = "Bearer admin-key"
        folder = tmp_path_factory.mktemp("locked")
        yield stack.enter_context(Balancer(servers, folder, asks_for_keys=True))


def test_owners_with_the_same_names_do_not_meet(locked: Balancer) -> None:
    names = {"X-Supersede": "same", "X-Session-Id": "same"}
    with ExitStack() as clients:

        def post(owner: dict[str, str]) -> str:
            return locked.post(clients.enter_context(RawClient(locked.port)), headers=names | owner)

        hers, his = post(ALICE), post(BOB)
        places = locked.running(hers), locked.running(his)
        entries = [line for line in locked.table("keys").splitlines() if "key=" in line]
        assert len(entries) == 2
        newer = post(ALICE)
        assert locked.running(newer) == places[0]
        assert locked.state(hers)["superseded_by"] == newer
        assert locked.state(his)["status"] == "running"
        url = f"http://127.0.0.1:{locked.port}/v1"
        assert httpx.post(f"{url}/requests/{newer}/cancel", headers=BOB, timeout=60).status_code == 404
        cancelled = httpx.post(f"{url}/sessions/same/cancel", headers=BOB, timeout=30).json()
        assert [one["id"] for one in cancelled["requests"]] == [his]
        assert locked.state(newer)["status"] == "running"


def test_a_key_is_the_same_owner_in_either_header(locked: Balancer) -> None:
    with RawClient(locked.port) as client:
        request_id = locked.post(client, headers=ALICE)
        locked.running(request_id)
        url = f"http://127.0.0.1:{locked.port}/v1/requests/{request_id}/cancel"
        answer = httpx.post(url, headers={"x-api-key": "alice-key"}, timeout=30)
        assert answer.json()["outcome"] == "cancelled"


def test_a_stranger_is_refused_and_leaves_no_entry(locked: Balancer) -> None:
    before = until(locked.noted, lambda n: n > 0)
    with RawClient(locked.port) as client:
        client.socket.sendall(with_headers(post_bytes(fresh_id()), {"X-Session-Id": "stranger"}))
        assert client.answer().status == 401
    assert locked.noted() == before


def test_tables_hold_no_keys_and_no_names(locked: Balancer) -> None:
    with RawClient(locked.port) as client:
        locked.post(client, headers={**ALICE, "X-Session-Id": "telling"}, max_tokens=1)
        client.answer().read()
    shown = "".join(map(locked.table, ("requests", "keys", "sessions")))
    assert "telling" not in shown
    assert "alice" not in shown
