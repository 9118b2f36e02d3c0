"""HAProxy's configuration as text; tests/cluster has a HAProxy read it, and runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyllmcancel.cluster.haproxy import PLACE, Settings, configuration
from pyllmcancel.cluster.places import (
    MAX_REPLICAS,
    Peer,
    Replica,
    check_bind,
    check_peers,
    check_replicas,
    check_socket,
    named_peer,
    named_replica,
)
from pyllmcancel.cluster.ports import bind_text
from pyllmcancel.errors import UsageError

TWO = (named_replica("one=10.0.0.1:8000"), named_replica("[fd00::2]:8000"))


def lines(**settings: object) -> list[str]:
    return configuration(Settings(replicas=TWO, **settings)).splitlines()  # type: ignore[arg-type]


def test_every_place_is_filled_and_every_replica_has_its_line() -> None:
    written = lines()
    assert not [line for line in written if PLACE.search(line) or "[if " in line]
    assert [line.strip() for line in written if line.startswith("    server ")] == [
        f"server one 10.0.0.1:8000 id {TWO[0].id}",
        f"server fd00-2-8000 [fd00::2]:8000 id {TWO[1].id}",
    ]


def test_it_listens_on_this_machine_only_unless_told() -> None:
    assert "    bind 127.0.0.1:8000 tcp-ut 20s" in lines()
    assert "    bind [::]:80,10.0.0.9:80 tcp-ut 20s" in lines(bind=bind_text("::,10.0.0.9", 80))
    assert [line for line in lines() if line.startswith("    peer ")] == ["    peer balancer 127.0.0.1:8799"]


def test_names_are_looked_up_again_only_if_asked() -> None:
    assert "resolvers" not in "\n".join(lines())
    written = lines(dns=True)
    assert "    parse-resolv-conf" in [line[:21] for line in written]
    assert "    default-server resolvers system init-addr libc,none" in written


def test_one_more_replica_changes_no_others_lines() -> None:
    three = configuration(Settings(replicas=(named_replica("new=10.0.0.9:8000"), *TWO), slots=4)).splitlines()
    assert set(lines(slots=4)) - set(three) == {lines()[0]}  # their number


def test_owners_are_in_the_digests_where_the_replicas_ask_for_keys() -> None:
    with_keys, without = "\n".join(lines()), "\n".join(lines(asks_for_keys=False))
    assert "authorization" in with_keys
    assert "x-api-key" in with_keys
    assert "authorization" not in without
    assert "set-var(txn.owner) str(all)" in without


def test_of_two_balancers_none_moves_a_name_that_the_other_may_have() -> None:
    peers = (Peer("a", "10.0.0.1:9000"), Peer("b", "10.0.0.2:9000"))
    written = lines(peers=peers, here="b")
    assert "    localpeer b" in written
    assert "    peer a 10.0.0.1:9000" in written
    assert "    http-request set-var(txn.session_live) int(1)" in written
    assert not [line for line in written if "table_conn_cur" in line]


def test_what_clients_must_not_set_is_stripped() -> None:
    written = "\n".join(lines())
    stripped = set(re.findall(r"http-request del-header (\S+)", written))
    assert stripped == {
        *("Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "X-Served-By", "Proxy"),
        "X-Request-Disconnect-Disabled",
    }
    assert "http-request set-header X-Forwarded-For %[src]" in written
    page = Path(__file__).parents[2] / "docs" / "scale-out.md"
    told = page.read_text("utf-8")
    assert all(f"`{name}`" in told for name in stripped)


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", "host:0", "host:65536", ":8000", "a b:1", "x=y=h:1", "=h:1", "-x=h:1", "n\nm=h:1", "h:1\n x"],
)
def test_an_address_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        named_replica(text)


@pytest.mark.parametrize(
    ("replicas", "told"),
    [
        ([], "1 to 64 replicas, not 0"),
        ([Replica(f"r{i}", f"h:{i + 1}") for i in range(MAX_REPLICAS + 1)], "not 65"),
        ([Replica("a", "h:1"), Replica("a", "h:2")], "two replicas have the name a: h:1 and h:2"),
        ([Replica("a", "h:1"), Replica("b", "h:1")], "b and a are one replica"),
    ],
)
def test_replicas_that_cannot_be_told_apart_are_refused(replicas: list[Replica], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_replicas(replicas)


def test_balancers_that_cannot_be_told_apart_are_refused() -> None:
    one, other = named_peer("a=h:1"), named_peer("b=h:2")
    check_peers([one, other], "b")
    for peers, here in (([one, named_peer("a=h:2")], "a"), ([one, named_peer("b=h:1")], "a"), ([one, other], "c")):
        with pytest.raises(UsageError):
            check_peers(peers, here)
    with pytest.raises(UsageError, match="NAME=HOST:PORT"):
        named_peer("h:1")


@pytest.mark.parametrize("host", ["", "a b", "h\nglobal", "h ssl crt x", "a,,b"])
def test_a_host_cannot_say_more_than_a_host(host: str) -> None:
    with pytest.raises(UsageError):
        check_bind(host)


@pytest.mark.parametrize("path", ["relative", "/a b", "/a'b", "/a\nb", '/a"b'])
def test_a_socket_cannot_say_more_than_a_path(path: str) -> None:
    with pytest.raises(UsageError):
        check_socket(Path(path))
    check_socket(Path("/run/haproxy/x.sock"))
