"""Become a command that dies with the process that started this: ``python -I -S bound.py PARENT COMMAND …``.

Linux sends the signal when the parent is gone, by whatever way: also by SIGKILL, which no handler sees. It is SIGKILL
too, because nobody would be there to send another if the first were not heard. Not a ``preexec_fn``: that would run
Python in a forked child of a process that may have threads.
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
    if os.getppid() != parent:  # it went before that
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
