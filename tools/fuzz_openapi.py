"""Hold a running server to its own OpenAPI page, with schemathesis: thousands of requests, right ones and wrong ones.

    python3 -m venv build/schemathesis && build/schemathesis/bin/pip install schemathesis
    python -P tools/fuzz_openapi.py --schemathesis build/schemathesis/bin/schemathesis

Serves the packaged model on one thread, with a key, a short deadline and short answers, so that generated requests
cannot ask for much. Fails on any unintended 5xx, and on any status, content type or body that the page does not
describe. Fails, too, if a path forgets the key, if the server has logged a defect, or if it does not end properly.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

CONFIG = Path(__file__).with_name("schemathesis.toml")
KEY = "fuzz"
SERVER_OPTIONS = ("--threads", "1", "--request-timeout", "2", "--n-predict", "16", "--api-key", KEY)
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
)
START_SECONDS = 60.0


@contextmanager
def serving(port: int, log: IO[bytes]) -> Iterator[str]:
    """A server, until it is healthy; at the end it must be idle, and must end by the signal."""
    command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", "--port", str(port), *SERVER_OPTIONS]
    process = subprocess.Popen(command, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(process, url)
        yield url
        health = httpx.get(f"{url}/health").json()
        assert health == {"status": "ok", "waiting": 0, "running": 0}, health
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(30)
    assert status == -signal.SIGTERM, status


def wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/health").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit("the server did not become healthy")


def fuzz(schemathesis: str, url: str, arguments: argparse.Namespace) -> int:
    command = [schemathesis, "--config-file", str(CONFIG), "run", f"{url}/openapi.json"]
    command += ["--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--continue-on-failure"]
    command += ["--workers", "1", "--request-timeout", "30", "--header", f"Authorization: Bearer {KEY}"]
    command += ["--max-examples", str(arguments.max_examples), "--seed", str(arguments.seed)]
    return subprocess.run(command, check=False).returncode


def defects(log: Path) -> list[str]:
    """Lines that tell of one: a traceback, or an error that no client could have caused."""
    return re.findall(r"^(?:Traceback .*|.* (?:ERROR|CRITICAL) .*)$", log.read_text("utf-8", "replace"), re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemathesis", default="schemathesis", help="the command [schemathesis]")
    parser.add_argument("--port", type=int, default=8140)
    parser.add_argument("--max-examples", type=int, default=50, help="of each operation, in the last phase [50]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("build/fuzz-server.log"), help="the server's log")
    arguments = parser.parse_args()
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    with arguments.log.open("wb") as log, serving(arguments.port, log) as url:
        status = fuzz(arguments.schemathesis, url, arguments)
    found = defects(arguments.log)
    sys.stdout.write("".join(f"in the server's log: {line}\n" for line in found))
    return status or bool(found)


if __name__ == "__main__":
    sys.exit(main())
