"""The listening sockets: bound before the model is loaded, and accepting a few connections at a time."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyllmcancel.server.limits import ACCEPT_AT_ONCE, MAX_CONNECTIONS, OTHER_FILES

logger = logging.getLogger("pyllmcancel.server")

BACKLOG = 2048  # connections that the kernel keeps until they are accepted
NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
UNIX_SOCKET = ".sock"  # what ends so is the path of a Unix socket, as in llama-server
OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener(socket.socket):
    """Accepts a few connections at a time.

    asyncio accepts all waiting connections before any other task has a turn. Without a descriptor left it tries, and
    logs, as often as connections could wait.
    """

    path: Path | None = None  # of a Unix socket
    _n_accepted = 0  # in a row; written by the event loop

    def accept(self) -> tuple[socket.socket, Any]:
        if self._n_accepted >= ACCEPT_AT_ONCE:
            self._n_accepted = 0
            raise BlockingIOError  # the rest are accepted in the event loop's next turn
        self._n_accepted += 1
        try:
            return super().accept()
        except BlockingIOError:
            self._n_accepted = 0
            raise
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                self._n_accepted = ACCEPT_AT_ONCE
            raise


def listen(host: str, port: int) -> list[Listener]:
    """Listen on every address that each name or address in `host` has on this machine; a name that ends with ``.sock``
    is a Unix socket's path. OSError, in words, if that is impossible.
    """
    listeners: list[Listener] = []
    try:
        for name in map(str.strip, host.split(",")):
            is_path = name.endswith(UNIX_SOCKET)
            listeners += [_unix_listener(Path(name))] if is_path else _listeners_of(name, port)
    except OSError as error:
        close_all(listeners)
        reason = (error.strerror or str(error)).lower()
        raise OSError(error.errno, f"cannot listen on {name if is_path else f'{name}:{port}'}: {reason}") from error
    return listeners


def _listeners_of(host: str, port: int) -> list[Listener]:
    listeners: list[Listener] = []
    found = addresses_of(host, port)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            listeners.append(_listener(family, kind, protocol, address))
        except OSError as error:
            # A name may have an address, often of IPv6, that this machine lacks.
            if error.errno not in NOT_HERE or (address == found[-1][4] and not listeners):
                close_all(listeners)
                raise
    return listeners


def _unix_listener(path: Path) -> Listener:
    """Listen on a path, which only this user may connect to. A socket that nobody listens on is replaced."""
    _remove_stale(path)
    before = os.umask(0o177)
    try:
        listener = _listener(socket.AF_UNIX, socket.SOCK_STREAM, 0, str(path))
    finally:
        os.umask(before)
    listener.path = path
    return listener


def _remove_stale(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return  # not ours: `bind` reports it
        with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
            probe.connect(str(path))
            return
        path.unlink()


def addresses_of(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # Python's own encoding of names, before the system is asked
        raise OSError(socket.EAI_NONAME, "not a host name") from None


def _listener(family: int, kind: int, protocol: int, address: Any) -> Listener:
    listener = Listener(family, kind, protocol)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a former process linger
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        # At once: two sockets that are only bound can have the same port.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def close_all(listeners: list[Listener]) -> None:
    for listener in listeners:
        listener.close()
        if listener.path is not None:
            listener.path.unlink(missing_ok=True)


def is_unix(listener: socket.socket) -> bool:
    return listener.family == socket.AF_UNIX


def url_of(listener: socket.socket, *, secure: bool) -> str:
    if is_unix(listener):
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return url_at(host, port, secure=secure)


def url_at(host: str, port: int, *, secure: bool) -> str:
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def raise_file_limit() -> None:
    """Raise the limit of descriptors to the number that the connections may need, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def quiet_about_files(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a lack of descriptors quietly. As an event loop's exception handler: asyncio tries again after 1 s."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_FILES and "socket" in context:
        logger.warning("no connection can be accepted: %s", error.strerror)
    else:
        loop.default_exception_handler(context)
