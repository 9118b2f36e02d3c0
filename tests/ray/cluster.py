"""``serve run`` of a configuration, on this machine; all of it gone at the end."""

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
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from tests.support.http_process import ServerProcess, until
from tests.support.proxies import free_port

ROOT = Path(__file__).parents[2]
MISSING = "RAY WAS NOT TRIED: it is not installed (pip install 'pyllmcancel[ray]'; then pytest -m '' tests/ray)"
SERVE = "import sys; from ray.serve.scripts import cli; sys.exit(cli())"
MARK = "PYLLMCANCEL_TEST_CLUSTER"
SECONDS = 180.0  # for Ray, which starts and ends many processes
KILL = """
import sys, ray
ray.init(address="auto", log_to_driver=False)
(name,) = (one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if sys.argv[1] in one["name"])
ray.kill(ray.get_actor(name, namespace="serve"))
"""


def is_missing() -> bool:
    return find_spec("ray") is None


def recommended() -> dict[str, str]:
    """Return the variables of ``deploy/ray.env``."""
    lines = (ROOT / "deploy" / "ray.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


class RayCluster(ServerProcess):
    """Models on Ray Serve, asked as any server: at their front. Both tables are of each model's workers."""

    def __init__(self, models: dict[str, dict[str, Any]], settings: dict[str, dict[str, Any]]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets have their place in it
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60.0)
        self._mark = str(uuid.uuid4())
        self._models = models
        self._front = {"port": self.port, "reader_stall": 0}  # tests have clients that do not read
        self._settings = {name: {"name": "workers", **one} for name, one in settings.items()}
        file = self.folder / "serve.yaml"
        file.write_text(json.dumps(self._config()))
        # By default Ray makes a token, and leaves it in the home folder.
        of_ours = {MARK: self._mark, "RAY_AUTH_TOKEN": self._mark, "RAY_TMPDIR": str(self.folder)}
        self._environment = os.environ | recommended() | of_ours
        self._log_file = self.folder / "log"
        with self._log_file.open("w") as log:
            command = [sys.executable, "-P", "-c", SERVE, "run", str(file)]
            options = {"stdout": log, "stderr": log, "env": self._environment, "start_new_session": True}
            self._run = subprocess.Popen(command, **options)

    def _config(self) -> dict[str, Any]:
        ours = "pyllmcancel.ray:"
        applications: list[dict[str, Any]] = [{"name": "front", "import_path": f"{ours}front", "args": self._front}]
        for name, options in self._models.items():
            one = {"name": name, "import_path": f"{ours}model", "args": options}
            applications.append(one | {"deployments": [self._settings[name]]})
        return {"proxy_location": "Disabled", "applications": [one | {"route_prefix": None} for one in applications]}

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    def started(self) -> RayCluster:
        """Wait until as many workers serve as there are to be at first."""
        for name, n in ((name, one.get("num_replicas", 1)) for name, one in self._settings.items()):
            self.wait_for_workers(name, lambda found, n=n: len(found) == n)
        return self

    def workers(self, model: str) -> list[str]:
        """The names of the model's workers that are ready."""
        assert self._run.poll() is None, self.log
        with suppress(httpx.TransportError):  # the front may not be there yet
            for one in self.http.get("/v1/models").json()["data"]:
                if one["id"] == model:
                    return [each["name"] for each in one["replicas"] if each["status"]["value"] == "loaded"]
        return []

    def wait_for_workers(self, model: str, accept: Any) -> list[str]:
        return until(lambda: self.workers(model), accept, SECONDS)

    def kill(self, name: str) -> None:
        subprocess.run([sys.executable, "-P", "-c", KILL, name], env=self._environment, check=True, timeout=SECONDS)

    def deploy(self, models: dict[str, dict[str, Any]]) -> None:
        """Have other models, by what `serve deploy` asks of Ray's dashboard."""
        self._models = models
        self._ask_dashboard("PUT", json=self._config())

    def status(self, model: str) -> dict[str, Any]:
        return self._ask_dashboard("GET")["applications"][model]

    def _ask_dashboard(self, method: str, **given: Any) -> Any:
        address = re.search(r"http://127\.0\.0\.1:\d+", self.log)
        assert address is not None, self.log
        key = {"Authorization": f"Bearer {self._mark}"}
        answer = httpx.request(method, f"{address[0]}/api/serve/applications/", headers=key, timeout=60, **given)
        return answer.raise_for_status().json() if answer.content else None

    def pids(self) -> list[int]:
        found, mark = [], f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def interrupt(self) -> None:
        """End it as Ctrl-C does, and wait until nothing of it is left; TimeoutError if something is."""
        self._run.send_signal(signal.SIGINT)
        self._run.wait(SECONDS)
        until(self.pids, lambda left: not left, SECONDS)

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        try:
            if self._run.poll() is None:
                self.interrupt()
        finally:
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._run.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
