"""A front whose workers are servers of their own, over TCP: one is named, with TLS, and one registers itself."""

import shutil
import signal
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import httpx
import pytest

from tests.clients.model import write_patient_model
from tests.support.http_process import LIMIT, START_LIMIT, RawClient, ServerProcess, events, fresh_id, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")

KEY = "a key of workers"
HEADERS = {"X-Worker-Key": KEY}
ENDLESS: dict[str, Any] = {"stream": True, "max_tokens": 30_000}
NAMES = ["named", "registered"]


class Site(NamedTuple):
    front: ServerProcess
    named: httpx.Client  # to each worker, past the front
    registered: httpx.Client
    options: tuple[str, ...]  # of the worker that registers
    far: list[ServerProcess]

    def ready(self) -> list[str]:
        return sorted(name for name, state in self.front.replicas().items() if state == "loaded")

    def live(self) -> list[int]:
        told = [one.get("/health", headers=HEADERS).json() for one in (self.named, self.registered)]
        return [one["waiting"] + one["running"] for one in told]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("far")
    key, cert, secret = folder / "key.pem", folder / "cert.pem", folder / "secret"
    secret.write_text(f"{KEY}\n")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    model = write_patient_model(folder / "stdlib.gguf")
    common = ("--worker-key", str(secret), "--worker-ca", str(cert))
    own = (*common, "--model", str(model), "--ctx-size", "32768", "--spec-type", "none")
    with ExitStack() as stack:
        tls = ("--ssl-key-file", str(key), "--ssl-cert-file", str(cert))
        named = stack.enter_context(ServerProcess(*own, *tls, "--replica", "named"))
        port = named.wait_for_log(r"running on https://127\.0\.0\.1:(\d+)", START_LIMIT)[1]
        places = ("--workers", f"any,https://127.0.0.1:{port}", "--drain", "0.2")
        front = stack.enter_context(ServerProcess(*common, *places))
        front.started()
        options = (*own, "--replica", "registered", "--worker", front.url)
        far = stack.enter_context(ServerProcess(*options)).started()
        trusted = ssl.create_default_context(cafile=cert)
        named = httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=LIMIT)
        to_named = stack.enter_context(named)
        found = Site(front, to_named, far.http, options, [far])
        until(found.ready, lambda names: names == NAMES, START_LIMIT)
        yield found
        for one in found.far[1:]:
            one.__exit__(None, None, None)


def test_a_storm_leaves_nothing_and_every_cancel_is_heard(site: Site) -> None:
    http = site.front.http

    def one(number: int) -> str:
        """Begin an answer, and end it in one of the ways; return how it ended."""
        request_id, key = fresh_id(), f"key{number % 3}"
        way = ("done", "id", "session", "newer", "leave")[number % 5]
        body = {"prompt": "def f", "max_tokens": 8 if way == "done" else 30_000, "stream": True}
        body |= {"session_id": request_id} if way == "session" else {"supersede": key} if way == "newer" else {}
        with http.stream("POST", "/v1/completions", json=body, headers={"X-Request-Id": request_id}) as answer:
            lines = answer.iter_lines()
            next(lines)
            match way:
                case "id":
                    assert http.post(f"/v1/requests/{request_id}/cancel").json()["outcome"] == "cancelled"
                case "session":
                    told = http.post(f"/v1/sessions/{request_id}/cancel").json()
                    assert [one["outcome"] for one in told["requests"]] == ["cancelled"]
                case "newer":
                    http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "supersede": key})
                case "leave":
                    return way
            last = [line for line in lines if line][-1]
        assert (last == "data: [DONE]") is (way == "done"), (way, last)
        return way

    with ThreadPoolExecutor(12) as pool:
        ways = Counter(pool.map(one, range(60)))
    assert ways == dict.fromkeys(("done", "id", "session", "newer", "leave"), 12)
    until(lambda: http.get("/health").json()["running"], lambda n: n == 0)
    until(site.live, lambda live: live == [0, 0])
    served = Counter(one["replica"] for one in http.get("/v1/requests").json()["data"])
    assert set(served) == set(NAMES)


def test_without_the_key_a_worker_serves_nobody(site: Site) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    message = {"owner": "", "id": "x", "items": True}
    told = {"X-Front-Owner": "11", "X-Front-Link": "1", "X-Arrived": "1.0 1"}
    for client in (site.named, site.registered):
        assert client.get("/health").json() == {"status": "ok", "waiting": 0, "running": 0}
        for headers in ({}, told, told | {"X-Worker-Key": "another"}):
            assert client.post("/v1/completions", json=body, headers=headers).status_code == 401
            assert client.post("/v1/worker", json=message, headers=headers).status_code == 401
        assert client.post("/v1/worker", json={"kind": "no"}, headers=HEADERS).status_code == 400
        assert client.post("/v1/completions", json=body, headers=HEADERS).status_code == 200


def test_a_stored_conversation_goes_on_at_another_worker(site: Site) -> None:
    http, made = site.front.http, list[str]()
    with RawClient(site.front.port) as client:
        for _ in range(4):
            made.append(http.post("/v1/responses", json={"input": "def f", "max_output_tokens": 4}).json()["id"])
            if len(made) == 2:
                site.front.wait_for(client.post(**ENDLESS), status="running")
        for one in made:
            body = {"input": "and", "max_output_tokens": 4, "previous_response_id": one}
            answer = http.post("/v1/responses", json=body).json()
            listed = http.get(f"/v1/responses/{answer['id']}/input_items").json()["data"]
            assert len(listed) == 3
            assert http.delete(f"/v1/responses/{one}").json()["deleted"]
            assert http.get(f"/v1/responses/{one}").status_code == 404


def test_a_killed_worker_is_left_out_and_one_that_comes_is_used(site: Site) -> None:
    with RawClient(site.front.port) as first, RawClient(site.front.port) as second:
        ids = [one.post(**ENDLESS) for one in (first, second)]
        at = {site.front.wait_for(one, status="running")["replica"]: one for one in ids}
        assert sorted(at) == NAMES
        site.far[-1].signal(signal.SIGKILL)
        assert site.front.wait_for(at["registered"], replica="named")  # it goes on there
        assert site.front.http.get(f"/v1/requests/{at['named']}").json()["status"] == "running"
        until(site.ready, lambda names: names == ["named"])
        site.far.append(ServerProcess(*site.options).started())
        until(site.ready, lambda names: names == NAMES, START_LIMIT)
        site.far[-1].signal()  # it says so
        until(site.ready, lambda names: names == ["named"])


def test_a_front_that_ends_ends_its_requests_and_not_its_workers(site: Site) -> None:
    with RawClient(site.front.port) as client:
        site.front.wait_for(client.post(**ENDLESS), status="running")
        site.front.signal()
        assert '"code": "shutdown"' in events(client.answer())[-1]
    assert site.front.wait() == -signal.SIGTERM
    until(lambda: site.named.get("/health", headers=HEADERS).json()["running"], lambda n: n == 0)
