"""A process that has imported the server, and forks one whenever `launcher` asks: imports are most of a start.

A launcher connects, and sends the options as JSON with its own standard output and error. It gets the server's process
id, and then its exit status. Whichever of the two dies, the other ends: what binds them is their connection.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pyllmcancel.server.running.process  # noqa: F401 - the command line imports it late
from pyllmcancel.cli import main

MAX_OPTIONS = 65_536  # bytes


def serve(path: Path) -> None:
    """Fork until this process is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                become_server(connection)
            connection.close()


def become_server(connection: socket.socket) -> None:
    """Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(connection, MAX_OPTIONS, 2)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
    connection.sendall(f"{os.getpid()}\n".encode())
    threading.Thread(target=die_with, args=(connection,), daemon=True).start()
    try:
        status = main(["serve", *json.loads(message)])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    sys.stderr.flush()
    connection.sendall(f"{status}\n".encode())
    os._exit(status)


def die_with(connection: socket.socket) -> None:
    if not connection.recv(1):
        os._exit(1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
