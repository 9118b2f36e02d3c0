"""Machines and the switch between them, made of network namespaces: cables that can be pulled.

Pulling the client's cable from the switch leaves the server's link as it is: nothing comes any more, neither a FIN, nor
a RST, nor an error from the network, as when a laptop's lid is closed. Needs root and iproute2.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

CLONE_NEWNET = 0x4000_0000  # of setns(2)
NAMESPACES = Path("/run/netns")  # where iproute2 keeps them
SERVER, CLIENT = "192.0.2.1", "192.0.2.2"  # of the network that is reserved for examples


class NamespacesMissingError(Exception):
    """Namespaces cannot be made here, and why."""


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NamespacesMissingError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Network(AbstractContextManager["Network"]):
    """A server's machine and a client's, with a switch; NamespacesMissingError if that cannot be made."""

    def __init__(self) -> None:
        if shutil.which("ip") is None:
            raise NamespacesMissingError("there is no ip command: install iproute2")
        if os.geteuid() != 0:
            raise NamespacesMissingError("only root may make network namespaces")
        prefix = f"pyllmcancel-{os.getpid()}"
        self.server, self.client, self._switch = (f"{prefix}-{name}" for name in ("server", "client", "switch"))
        self.namespaces = {SERVER: self.server, CLIENT: self.client}
        with ExitStack() as stack:
            for namespace in (*self.namespaces.values(), self._switch):
                ip("netns", "add", namespace)
                stack.callback(ip, "netns", "del", namespace)
            ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            ip("-n", self._switch, "link", "set", "switch", "up")
            for address, namespace in self.namespaces.items():
                self._connect(namespace, address)
            self._stack = stack.pop_all()

    def _connect(self, namespace: str, address: str) -> None:
        """A cable from the machine to the switch."""
        plug = address.replace(".", "-")
        ip("-n", namespace, "link", "add", "cable", "type", "veth", "peer", "name", plug, "netns", self._switch)
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "cable")
        ip("-n", namespace, "link", "set", "cable", "up")
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", self._switch, "link", "set", plug, "master", "switch", "up")

    def pull(self) -> None:
        """Pull the client's cable."""
        ip("-n", self._switch, "link", "set", CLIENT.replace(".", "-"), "down")

    def plug_in(self) -> None:
        ip("-n", self._switch, "link", "set", CLIENT.replace(".", "-"), "up")

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have this thread on that machine: sockets, threads and processes that it makes stay there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before, (NAMESPACES / namespace).open() as wanted:
        _enter(libc, wanted.fileno())
        try:
            yield
        finally:
            _enter(libc, before.fileno())


def _enter(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
