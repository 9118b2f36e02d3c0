"""nginx, HAProxy and LiteLLM, run by hand on a loopback port with the recipes of ``deploy/``."""

import os
import re
import secrets
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tests.support.http_process import LIMIT, until

DEPLOY = Path(__file__).parents[2] / "deploy"
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
given = set[int]()  # ports of this process
# What a distribution's own nginx.conf has around the files of conf.d.
NGINX = """
daemon off;
pid {folder}/pid;
worker_processes 1;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {site};
}}
"""


class Proxy(AbstractContextManager["Proxy"], ABC):
    """A proxy before the server on port `upstream`.

    `settings` are directives of the recipe, by name, with other values; None leaves one out.
    """

    program: str
    advice: str  # where the program comes from

    def __init__(
        self, upstream: int, folder: Path, settings: dict[str, str | None] | None = None, **others: int
    ) -> None:
        self.others = others  # ports of further servers
        self.port = free_port()
        self._log = folder / "log"
        command = self.command(upstream, folder, settings or {})
        with self._log.open("w") as log:
            own = self.environment(upstream)
            self._process = subprocess.Popen(command, stderr=log, stdout=log, cwd=folder, env=own)
        try:
            until(self._is_listening, bool)
        except BaseException:
            self.__exit__()
            raise

    @classmethod
    def is_installed(cls) -> bool:
        return cls.path() is not None

    @classmethod
    def path(cls) -> str | None:
        """The path of the program; not every PATH has the folders of an administrator's programs."""
        return shutil.which(cls.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

    @abstractmethod
    def command(self, upstream: int, folder: Path, settings: dict[str, str | None]) -> list[str]:
        """Write the configuration into `folder`; how to run the proxy with it, in the foreground."""

    def environment(self, upstream: int) -> dict[str, str]:
        """The environment of the proxy's process."""
        return dict(os.environ)

    def _is_listening(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(LIMIT)
        finally:
            self._process.kill()


class Nginx(Proxy):
    program, advice = "nginx", "apt install nginx-light"

    def command(self, upstream: int, folder: Path, settings: dict[str, str | None]) -> list[str]:
        site = (DEPLOY / "nginx.conf").read_text()
        site = changed(site, "        {} {};", settings, after="proxy_pass http://pyllmcancel;")
        site = replaced(site, "listen 8080 ", f"listen 127.0.0.1:{self.port} ")
        site = replaced(site, "server 127.0.0.1:8000;", f"server 127.0.0.1:{upstream};")
        (folder / "site.conf").write_text(site)
        # Its workers would be another user, who cannot enter a test's folder.
        user = "user root;" if os.geteuid() == 0 else ""
        whole = folder / "nginx.conf"
        whole.write_text(NGINX.format(folder=folder, site=folder / "site.conf", user=user))
        return [str(self.path()), "-p", str(folder), "-c", str(whole), "-e", "stderr"]


class HAProxy(Proxy):
    """`second` is the port of the recipe's other server, which is left out without."""

    program, advice = "haproxy", "apt install haproxy"

    def command(self, upstream: int, folder: Path, settings: dict[str, str | None]) -> list[str]:
        whole = (DEPLOY / "haproxy.cfg").read_text()
        whole = changed(whole, "    {} {}", settings, after="mode http")
        whole = replaced(whole, "bind :8080 ", f"bind 127.0.0.1:{self.port} ")
        if "second" not in self.others:
            whole = re.sub(r"(?m)^ *server two .*\n", "", whole)
        for name, port in (("one 127.0.0.1:8000", upstream), ("two 127.0.0.1:8001", self.others.get("second"))):
            whole = whole.replace(f"server {name}", f"server {name.partition(' ')[0]} 127.0.0.1:{port}")
        (folder / "haproxy.cfg").write_text(whole)
        return [str(self.path()), "-db", "-f", str(folder / "haproxy.cfg")]


class LiteLLM(Proxy):
    """The program is not looked for in PATH alone: its packages want an environment of their own.

    `upstream` is where its model is; `direct` is where its callback finds the server, by default the same.
    """

    program, advice = "litellm", "pip install 'litellm[proxy]', and its path in LITELLM"
    key = f"sk-{secrets.token_hex(16)}"

    @classmethod
    def path(cls) -> str | None:
        return os.environ.get("LITELLM") or super().path()

    def command(self, upstream: int, folder: Path, settings: dict[str, str | None]) -> list[str]:
        recipe = (DEPLOY / "litellm.yaml").read_text()
        recipe = changed(recipe, "  {}: {}", settings, after="general_settings:")
        # Its callback goes to the server itself, whatever lies between.
        recipe = replaced(recipe, "os.environ/PYLLMCANCEL_API_BASE", f"http://127.0.0.1:{upstream}/v1")
        (folder / "litellm.yaml").write_text(recipe)
        shutil.copy(DEPLOY / "litellm_cancel.py", folder)
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        return [str(self.path()), "--config", str(folder / "litellm.yaml"), *place, "--telemetry", "False"]

    def environment(self, upstream: int) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return own | {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": self.key,
            "PYLLMCANCEL_API_BASE": f"http://127.0.0.1:{self.others.get('direct', upstream)}/v1",
            "PYLLMCANCEL_API_KEY": "none",
        }


def changed(text: str, line: str, settings: dict[str, str | None], *, after: str) -> str:
    """A configuration with other `settings`, each written as a `line` after the one that ends so."""
    for name, value in settings.items():
        text = re.sub(rf"(?m)^ *{re.escape(name)}\b.*\n", "", text)
        if value is not None:
            text = replaced(text, f"{after}\n", f"{after}\n{line.format(name, value)}\n")
    return text


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is not in the recipe, or more than once"
    return text.replace(old, new)


def free_port() -> int:
    """For a program that cannot tell which one it chose. None that the system gives to connections, or for port 0."""
    lowest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 0
    own = range(16_384, max(lowest, 32_768))
    while True:
        port = secrets.choice(own)
        with socket.socket() as probe, suppress(OSError):
            if port not in given:
                probe.bind(("127.0.0.1", port))
                given.add(port)
                return port
