"""Become a command that dies with its parent process: ``python -I -S bound.py PARENT COMMAND …``.

Linux sends the signal when the parent is gone, even by SIGKILL, which no handler sees. The signal is SIGKILL, because
nobody would be left to send another one if the first were ignored. A ``preexec_fn`` does not fit: it would run Python
in a forked child of a process that may have threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

assert sys.platform == "linux"

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot be bound to its parent")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which may be sent to all processes, and is for the parent
    if os.getppid() != parent:  # the parent has ended before
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
