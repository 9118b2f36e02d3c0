"""HAProxy with its recipe before two servers: names stay on one of them, and a client's leaving arrives."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from queue import SimpleQueue

import httpx
import pytest

from tests.support.http_process import LIMIT, until
from tests.support.proxies import HAProxy
from tests.support.stub_server import Handler, StubServer

HELD = "X-Held"  # such a request gets the headers of a stream, and no more
PATHS = {"X-Request-Id": "/v1/requests/{}/cancel", "X-Session-Id": "/v1/sessions/{}/cancel"}


class Stub(StubServer):
    """Tells in each answer which server it is, and notes the held requests whose client has left."""

    def __init__(self, name: str) -> None:
        super().__init__(Answer)
        self.name = name
        self.is_healthy = True
        self.left = SimpleQueue[str]()


class Answer(Handler):
    server: Stub

    def do_GET(self) -> None:  # noqa: N802 - named by the library
        self.send_response(200 if self.server.is_healthy else 503)
        self.end_headers()

    def do_POST(self) -> None:  # noqa: N802 - named by the library
        self.body()
        self.send_response(200)
        self.end_headers()
        if (held := self.headers.get(HELD)) is None:
            self.wfile.write(json.dumps(self.server.name).encode())
        else:
            self.wfile.flush()
            assert self.connection.recv(1) == b""
            self.server.left.put(held)


@pytest.fixture(scope="module")
def stubs() -> Iterator[list[Stub]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Stub(name)) for name in ("one", "two")]


@pytest.fixture(scope="module")
def client(stubs: list[Stub], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    if not HAProxy.is_installed():
        pytest.skip(f"HAPROXY WAS NOT TRIED: it is not installed ({HAProxy.advice})")
    one, two = (stub.server_address[1] for stub in stubs)
    with (
        HAProxy(one, tmp_path_factory.mktemp("haproxy"), second=two) as proxy,
        httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", timeout=LIMIT) as client,
    ):
        yield client


def place(client: httpx.Client, headers: dict[str, str], path: str = "/v1/completions") -> str:
    return client.post(path, headers=headers, content=b"{}").raise_for_status().json()


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["X-Supersede", "X-Conversation-Id", "X-Parent-Session-Id", "X-Session-Id", "X-Request-Id"]
)
def test_a_name_stays_on_one_server_and_names_are_spread(client: httpx.Client, kind: str) -> None:
    names = [f"name {kind} {number}" for number in range(16)]
    places = {name: place(client, {kind: name}) for name in names}
    assert set(places.values()) == {"one", "two"}
    for name, known in places.items():
        assert place(client, {kind: name}) == known
        if kind in PATHS:
            assert place(client, {}, PATHS[kind].format(name)) == known
        if kind == "X-Supersede":
            assert place(client, {kind: name, "X-Session-Id": "another", "X-Request-Id": "one more"}) == known


def test_owners_have_names_of_their_own(client: httpx.Client) -> None:
    owners = [{"Authorization": f"Bearer {number}"} for number in range(8)] + [{"X-Api-Key": "a"}, {"X-Api-Key": "b"}]
    first, second = ([place(client, {"X-Supersede": "k", **owner}) for owner in owners] for _ in range(2))
    assert first == second
    assert set(first) == {"one", "two"}


@pytest.mark.long
@pytest.mark.parametrize("name", [{}, {"X-Supersede": "k"}])
def test_a_clients_leaving_arrives(client: httpx.Client, stubs: list[Stub], name: dict[str, str]) -> None:
    for number in range(4):
        with client.stream("POST", "/v1/completions", headers={HELD: str(number), **name}, content=b"{}") as answer:
            assert answer.status_code == 200
        assert until(lambda: [one.left.get() for one in stubs if not one.left.empty()], bool) == [str(number)]


@pytest.mark.long
def test_a_server_that_is_not_healthy_gets_no_new_requests(client: httpx.Client, stubs: list[Stub]) -> None:
    names = [{"X-Supersede": str(number)} for number in range(8)]
    before = [place(client, name) for name in names]
    stubs[0].is_healthy = False
    until(lambda: {place(client, name) for name in [*names, {}, {}]}, lambda found: found == {"two"})
    stubs[0].is_healthy = True
    until(lambda: [place(client, name) for name in names], lambda found: found == before)
