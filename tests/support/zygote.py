"""A process that has imported the server, and forks one for each connection: imports are most of a server's start.

A client connects, and sends a server's options, environment and folder as JSON, with the standard output and error that
it is to have. It is told the server's process id, and then its exit status, negative after a signal. If it closes the
connection, or dies, the server is killed. The zygote ends when its standard input does.
"""

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pyllmcancel.server.running.process  # noqa: F401 - the command line imports it late
from pyllmcancel.cli import main

MAX_MESSAGE = 1 << 20  # bytes


def serve(path: Path) -> None:
    """Fork until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the tests'
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while sys.stdin.fileno() not in select.select([listener.fileno(), sys.stdin.fileno()], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                sys.stdin.close()
                keep_server(connection)
            connection.close()


def keep_server(connection: socket.socket) -> NoReturn:
    """Fork a server, tell how it ends, and end it when nobody wants to know that any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 2)
    pid = os.fork()
    if pid == 0:
        connection.close()
        become_server(json.loads(message), streams)
    for stream in streams:  # whoever reads the server's output is to see its end
        os.close(stream)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(null, number)
    ended = os.pidfd_open(pid)
    with suppress(BrokenPipeError):  # whoever asked may have gone at any moment
        connection.sendall(f"{pid}\n".encode())
        select.select([connection.fileno(), ended], [], [])
    if not select.select([ended], [], [], 0)[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become_server(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv[1:] = ["serve", *asked["options"]]
    try:
        status = main(sys.argv[1:])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
