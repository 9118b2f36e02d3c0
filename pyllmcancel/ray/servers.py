"""The replicas of the deployments: each runs ``pyllmcancel serve`` in a process of its own, which ends with it.

Ray makes them, asks for their health, and ends them. All of their methods run in Ray's event loop for users' code.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
import sys
from collections import deque
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import ray
from ray import serve

from pyllmcancel.front.child import Child, to_stderr
from pyllmcancel.front.worker import reason_in
from pyllmcancel.ray.options import command_line, worker_options

LISTENS = re.compile(r"running on (https?://\S+):(\d+)")
LOOPBACK = re.compile(r"https?://(127\.|\[::1\]|localhost)")
LOOK_EVERY = 0.2  # seconds between two looks while a worker loads
PATIENCE = 5.0  # seconds for an answer about its health
COUNTED_FOR = 2.0  # seconds for which Ray counts a live request; then it is counted again
MOST_COUNTED = 64  # live requests of one worker that Ray counts
# The process is its own, at an address that no certificate needs to name.
UNCHECKED = ssl.create_default_context()
UNCHECKED.check_hostname, UNCHECKED.verify_mode = False, ssl.CERT_NONE


class Key:
    """The key between the front and its workers: one for all that is built in this cluster, while it is there."""

    def __init__(self, key: str) -> None:
        self._key = key

    def get(self) -> str:
        return self._key


class Server:
    """A process of ``pyllmcancel serve``."""

    async def _start(self, line: list[str], key: str) -> None:
        """Start the process; RuntimeError with its own words if it ends before it listens."""
        self._key = NamedTemporaryFile("w", prefix="pyllmcancel-key-")  # noqa: SIM115 - it lives as long as this
        self._key.write(key)
        self._key.flush()
        self._last: deque[str] = deque(maxlen=20)
        self._listens: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", f"--worker-key={self._key.name}", *line]
        self._child = Child(command, self._heard)
        self._life = asyncio.create_task(self._child.live())
        await asyncio.wait((self._life, self._listens), return_when=asyncio.FIRST_COMPLETED)
        self._check_lives()
        self._url = self._listens.result()

    def _heard(self, lines: list[str]) -> None:
        to_stderr(lines)
        self._last += lines
        for line in lines if not self._listens.done() else ():
            if (found := LISTENS.search(line)) is not None:
                self._listens.set_result(f"{found[1]}:{found[2]}")

    def _check_lives(self) -> None:
        if self._life.done():
            last = next((line for line in reversed(self._last) if line.strip()), "")
            raise RuntimeError(f"the server ended: {reason_in(last)}")

    async def _health(self) -> dict[str, Any]:
        """Return what ``/health`` says; OSError if the process does not answer."""
        self._check_lives()
        return await asyncio.to_thread(health_of, self._url)

    async def check_health(self) -> None:
        """Ray ends a replica that raises here, and makes another."""
        await self._health()

    async def __del__(self) -> None:
        """End the process after its drain. Ray calls it once, and ends this process after its time-out."""
        self._child.signal(signal.SIGTERM)
        await asyncio.wait((self._life,))


class Front(Server):
    """The front, which knows the workers that register themselves."""

    async def __init__(self, line: list[str], key: str) -> None:  # type: ignore[misc] # Ray awaits it
        await self._start(["--workers=any", *line], key)

    async def url(self) -> str:
        """Return the URL at which workers reach it: on every machine, unless it listens on this one only."""
        if LOOPBACK.match(self._url):
            return self._url
        scheme, _, rest = self._url.partition("://")
        return f"{scheme}://{ray.util.get_node_ip_address()}:{rest.rpartition(':')[2]}"


class Worker(Server):
    """A worker of the model that its application is called; `front` is the name of the front's."""

    async def __init__(self, options: dict[str, Any], key: str, front: str) -> None:  # type: ignore[misc] # Ray awaits it
        context = serve.get_replica_context()
        url = await serve.get_deployment_handle(front, front).url.remote()
        host = "127.0.0.1" if LOOPBACK.match(url) else ray.util.get_node_ip_address()
        name = f"{context.app_name}-{context.replica_id.unique_id}"
        cpus = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
        threads = [f"--threads={cpus}"] if cpus else []
        where = [f"--host={host}", "--port=0", f"--worker={url}", f"--replica={name}"]
        line = command_line(worker_options(context.app_name, options))
        await self._start([*threads, *line, *where], key)
        while (await self._health())["status"] == "loading":  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(LOOK_EVERY)
        self._own = serve.get_deployment_handle(context.deployment, context.app_name)
        self._counting = asyncio.create_task(self._count())

    async def check_health(self) -> None:
        found = await self._health()
        if found["status"] != "ok":
            raise RuntimeError(f"{found['status']}: {found.get('error')}")

    async def _count(self) -> None:
        """Have Ray count each live request of this worker as a request of its own, so that it scales by them."""
        while True:
            n_live = 0
            with suppress(OSError, RuntimeError):
                found = await self._health()
                n_live = found.get("waiting", 0) + found.get("running", 0)
            counted = (self._own.counted.remote() for _ in range(min(n_live, MOST_COUNTED)))
            await asyncio.gather(asyncio.sleep(COUNTED_FOR), *counted, return_exceptions=True)

    async def counted(self) -> None:
        """Take the time for which one live request is counted."""
        await asyncio.sleep(COUNTED_FOR)


def health_of(url: str) -> dict[str, Any]:
    try:
        with urlopen(f"{url}/health", timeout=PATIENCE, context=UNCHECKED) as answer:
            body = answer.read()
    except HTTPError as error:  # 503 has a body, too
        body = error.read()
    found: dict[str, Any] = json.loads(body)
    return found
