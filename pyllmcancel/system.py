"""Calls of the system that several modules need, and those by which a helper process limits itself.

The package is tested on Linux. For macOS only types are checked; it has never run there.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import subprocess


def leave(number: int, _frame: object) -> NoReturn:
    """Handle a signal that ends the program."""
    raise SystemExit(128 + number)


def usable_cores() -> int:
    """Return the cores of this process's affinity; all cores if the system has no affinity."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def lock(file: IO[str], on_wait: Callable[[], object]) -> None:
    """Lock a file, until this process ends; `on_wait` is called before a wait for other processes."""
    if not try_lock(file):
        on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: IO[str]) -> bool:
    """Lock a file, unless another process has; returns whether it is locked now. The end of a process unlocks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_readable(connection: socket.socket, seconds: float) -> bool:
    """Return whether there is data to read, or the end, within `seconds`."""
    poll = select.poll()  # select() accepts no descriptor above 1,023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# -- helper processes --------------------------------------------------------------------------------------------------


def start_with_socket(command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a process whose standard input is `theirs`. Ctrl-C does not reach it."""
    import subprocess  # imported late: the command line imports this module, and starts no process

    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True)


def limit_call(cpu_seconds: float, wall_seconds: float) -> None:
    """End this process after a time, whatever it is doing, unless it calls this again before; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def end_by_limits_only() -> None:
    """Ignore SIGTERM, and let `limit_call` end this process, even if the parent ignored that signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def cpu_time(pid: int) -> int | None:
    """Return the time of processors that a process has used, in ticks of its system; None if that is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may contain blanks
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


def limit_memory(mib: int) -> None:
    """Limit this process's memory to `mib` above its present use. If the use is unknown, only time is limited."""
    size = memory_in_use(0)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + (mib << 20),) * 2)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def memory_in_use(field: int, pid: int | str = "self") -> int | None:
    """Return the bytes of a process: 0 all, 1 resident, mapped files included; None if unknown.

    `getrusage` is not used, because its peak includes the process that started this one.
    """
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[field]) * mmap.PAGESIZE
    except OSError:
        return None
