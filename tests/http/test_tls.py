"""``--ssl-key-file`` and ``--ssl-cert-file``: the same server behind TLS, where leaving is noticed as without."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.http_process import LIMIT, ServerProcess, fresh_id, post_bytes, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


@pytest.fixture(scope="module")
def client(certificate: tuple[Path, Path], long_model: Path) -> Iterator[httpx.Client]:
    key, cert = certificate
    options = ("--ssl-key-file", str(key), "--ssl-cert-file", str(cert), "--reader-stall", "1")
    with ServerProcess("--model", str(long_model), *options) as server:
        port = server.wait_for_log(r"running on https://127\.0\.0\.1:(\d+)")[1]
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=LIMIT) as client:
            until(lambda: client.get("/health").status_code, lambda status: status == 200)
            yield client


def test_it_serves(client: httpx.Client) -> None:
    assert client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 2}).status_code == 200


@pytest.mark.long
@pytest.mark.parametrize("reason", ["disconnect", "stalled"])
def test_a_client_that_leaves_or_does_not_read_is_noticed(client: httpx.Client, reason: str) -> None:
    request_id = fresh_id()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((client.base_url.host, client.base_url.port), timeout=LIMIT) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        encrypted.sendall(post_bytes(request_id, stream=True, max_tokens=30_000, ignore_eos=True))
        assert encrypted.recv(1)
        if reason == "disconnect":
            encrypted.close()
        path = f"/v1/requests/{request_id}"
        seen = until(lambda: client.get(path).json(), lambda seen: seen["status"] == "cancelled")
    assert seen["cancel_reason"] == reason
    assert seen["completion_tokens"] < 10_000
