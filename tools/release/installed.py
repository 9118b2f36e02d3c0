"""The wheel in an empty environment of the Python that runs this: ``python -m tools.release.installed WHEEL``.

Needs nothing but Python's standard library and a package index, so that it can be run in a container, too. Installs the
wheel, imports it, asks the command for its help, and serves: an answer, a cancel by id, the page, and an end by
SIGTERM. Prints the times since the start as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import venv
from pathlib import Path
from typing import IO, Any

WHAT_IS_INSTALLED = """
import json
from importlib.metadata import distributions
import pyllmcancel
from pyllmcancel import _native
packages = {one.name: one.version for one in distributions() if one.name not in ("pip", "setuptools")}
version = packages.pop("pyllmcancel")
found = {"version": version, "cpu": _native.cpu_variant(), "packages": packages, "file": pyllmcancel.__file__}
print(json.dumps(found))
"""


class Timer:
    """Seconds since the start, by what was reached."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self.reached: dict[str, float] = {}

    def mark(self, what: str) -> None:
        self.reached[what] = round(time.monotonic() - self._begin, 2)


def install(wheel: Path, folder: Path, timer: Timer) -> Path:
    """Install the wheel into a new environment; returns its Python."""
    venv.create(folder, with_pip=True)
    timer.mark("empty environment")
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    timer.mark("installed")
    return python


def what_is_installed(python: Path, folder: Path) -> dict[str, Any]:
    done = subprocess.run([python, "-I", "-c", WHAT_IS_INSTALLED], cwd=folder, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if not Path(found.pop("file")).is_relative_to(python.parent.parent):
        raise SystemExit("installed: another package is imported than the wheel's")
    if found["cpu"] != (os.environ.get("PYLLMCANCEL_CPU_VARIANT") or found["cpu"]):
        raise SystemExit(f"installed: the CPU's back end is {found['cpu']}")
    subprocess.run([python, "-m", "pip", "check"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    subprocess.run([python.with_name("pyllmcancel"), "--help"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return found


class Server:
    """``pyllmcancel serve`` with the packaged model, on a free port, which its log names."""

    def __init__(self, python: Path, folder: Path) -> None:
        command = [str(python.with_name("pyllmcancel")), "serve", "--port", "0", "--store", "memory"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYLLMCANCEL_")}
        if variant := os.environ.get("PYLLMCANCEL_CPU_VARIANT"):
            environment["PYLLMCANCEL_CPU_VARIANT"] = variant
        self._process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        self.url = self._listening()

    def _listening(self) -> str:
        """Return the address, once the model is loaded. The rest of the log is read and dropped."""
        assert self._process.stderr is not None
        lines = []
        url = ""
        for line in self._process.stderr:
            lines.append(line)
            if " running on " in line:
                url = line.split()[-1]
            if " is ready " in line:
                threading.Thread(target=_read_all, args=(self._process.stderr,), daemon=True).start()
                return url
        raise SystemExit("installed: the server ended:\n" + "".join(lines))

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return urllib.request.urlopen(self._request(path, body), timeout=60)

    def _request(self, path: str, body: dict[str, Any]) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        return urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(60)
        if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise SystemExit(f"installed: at SIGTERM the server ended with {status}")


def _read_all(stream: IO[str]) -> None:
    for _ in stream:
        pass


def serve(server: Server, timer: Timer) -> None:
    """Ask for an answer and cancel another in its middle."""
    prompt = {"prompt": "def hello_world():\n", "temperature": 0}
    with server.post("/v1/completions", prompt | {"max_tokens": 1}) as answer:
        first = json.load(answer)
    if first["usage"]["completion_tokens"] != 1:
        raise SystemExit(f"installed: no token came: {first}")
    timer.mark("first token")
    long = prompt | {"max_tokens": 2000, "ignore_eos": True, "stream": True, "n": 8}
    with server.post("/v1/completions", long) as stream:
        stream.readline()
        with server.post(f"/v1/requests/{stream.headers['X-Request-Id']}/cancel", {}) as answer:
            cancelled = json.load(answer)
        rest = stream.read()
    if cancelled["outcome"] != "cancelled" or b"[DONE]" in rest:
        raise SystemExit(f"installed: the cancel did not work: {cancelled}")
    timer.mark("first cancel")
    if b"<html" not in server.get("/"):
        raise SystemExit("installed: there is no page at /")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--keep", type=Path, help="make the environment here, and leave it (default: a temporary one)")
    arguments = parser.parse_args()
    timer = Timer()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "venv"
        python = install(arguments.wheel.resolve(), folder, timer)
        found = what_is_installed(python, folder)
        timer.mark("imported")
        server = Server(python, folder)
        timer.mark("serving")
        try:
            serve(server, timer)
        finally:
            server.end()
    version = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(json.dumps({"python": version, **found, "seconds": timer.reached}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
