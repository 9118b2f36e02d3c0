"""System calls that not every system has, and their replacements, all in one place.

The package is tested on Linux. For macOS and Windows only types are checked; it has never run there.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import subprocess

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource
    import termios
    import tty


Ending = Literal["time", "late", "killed", "stack", "memory"]


def usable_cores() -> int:
    """Return the cores of this process's affinity; all cores if the system has no affinity."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Return the memory of the machine; None if Python cannot find out."""
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def load_average() -> tuple[float, float, float] | None:
    """Return the load over 1, 5 and 15 minutes; None on Windows, which has none."""
    if sys.platform == "win32":
        return None
    return os.getloadavg()


# -- files -------------------------------------------------------------------------------------------------------------


def descriptor_limits() -> tuple[float, float]:
    """Return the limit of this process's descriptors, and the highest that it may ask for. Infinite on Windows."""
    if sys.platform == "win32":
        return inf, inf
    else:  # noqa: RET505 - mypy looks up names after a return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (inf if soft == resource.RLIM_INFINITY else soft, inf if hard == resource.RLIM_INFINITY else hard)


def ask_for_descriptors(most: int) -> None:
    """Raise the limit to `wanted` descriptors if the system allows it, within `descriptor_limits`."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def lock(file: IO[str], on_wait: Callable[[], object]) -> None:
    """Lock a file, after waiting for other processes; `on_wait` is called before a wait. The end of a process
    unlocks.
    """
    if sys.platform == "win32":
        waits = False
        while True:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)
            except OSError:  # LK_LOCK gives up after ten seconds
                if not waits:
                    on_wait()
                waits = True
            else:
                return
    else:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: IO[str]) -> bool:
    """Lock a file, unless another process has; returns whether it is locked now. The end of a process unlocks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


# -- sockets -----------------------------------------------------------------------------------------------------------


def claim_address(listener: socket.socket) -> None:
    """Let `bind` succeed although connections of a former process linger, and fail if another process listens there."""
    if sys.platform == "win32":
        # On Windows SO_REUSEADDR would let two processes listen at once, and lingering connections do not block an
        # address.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def wait_readable(connection: socket.socket, seconds: float) -> bool:
    """Return whether there is data to read, or the end, within `seconds`."""
    if sys.platform == "win32":
        return bool(select.select([connection], [], [], seconds)[0])
    # On other systems select() accepts no descriptor above 1,023.
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def send_datagram(address: str, data: bytes) -> None:
    """Send to a socket of the file system, or an abstract one after a null, without waiting; OSError if it fails."""
    if sys.platform == "win32":
        raise OSError("Windows has no such sockets")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.setblocking(False)
        teller.sendto(data, address)


# -- terminals ---------------------------------------------------------------------------------------------------------


def terminal_mode(descriptor: int) -> list[Any]:
    """Return the terminal's mode for `restore_terminal`; OSError on Windows."""
    if sys.platform == "win32":
        raise OSError("Windows's terminals have other modes")
    else:  # noqa: RET506
        return termios.tcgetattr(descriptor)


def give_keys_at_once(descriptor: int) -> None:
    """Switch off echo and line buffering; Ctrl-C and Ctrl-Z are still signals."""
    if sys.platform != "win32":
        tty.setcbreak(descriptor)


def restore_terminal(descriptor: int, mode: list[Any]) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)


# -- processes ---------------------------------------------------------------------------------------------------------


def start_with_socket(command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a process that gets `theirs` by `socket_given`. Ctrl-C does not reach it."""
    import subprocess  # imported late: the command line imports this module, and starts no process

    if sys.platform == "win32":
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
        )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(theirs.share(process.pid))
        return process
    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True)


def socket_given() -> socket.socket:
    """Return the socket, in a process that `start_with_socket` started."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    return socket.socket(fileno=0)


def limit_call(cpu_seconds: float, wall_seconds: float) -> None:
    """End this process after a time, whatever it is doing, unless it calls this again before; 0: no limit.

    Windows has no such limit: there the parent's own time-out ends the process.
    """
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def end_by_limits_only() -> None:
    """Ignore SIGTERM, and let `limit_call` end this process, even if the parent ignored that signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform != "win32":
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)


def cpu_time(pid: int) -> int | None:
    """Return the time of processors that a process has used, in ticks of its system; None if that is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may contain blanks
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


def why_ended(status: int) -> Ending:
    """Return the reason why a process with limits ended, by its status; memory is a guess.

    The limits are those of `limit_call` and `limit_memory`.
    """
    if sys.platform == "win32":
        return "memory"
    known: dict[int, Ending] = {
        -signal.SIGALRM: "late",
        -signal.SIGPROF: "time",
        -signal.SIGKILL: "killed",
        -signal.SIGSEGV: "stack",
    }
    return known.get(status, "memory")


def limit_memory(mib: int) -> None:
    """Limit this process's memory to `more` above its present use. If the use is unknown, only time is limited."""
    if sys.platform != "win32":
        size = memory_in_use(0)
        if size is not None:
            resource.setrlimit(resource.RLIMIT_AS, (size + (mib << 20),) * 2)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def memory_in_use(field: int) -> int | None:
    """Return the bytes of this process: 0 all, 1 resident; None if unknown.

    `getrusage` is not used, because its peak includes the process that started this one.
    """
    try:
        return int(Path("/proc/self/statm").read_text().split()[field]) * mmap.PAGESIZE
    except OSError:
        return None


def niceness() -> int:
    """Return the niceness of this process; 0 on Windows, which has none."""
    if sys.platform == "win32":
        return 0
    return os.getpriority(os.PRIO_PROCESS, 0)


class LastResort:
    """Ends the process after a time, unless it is called off."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        """Start the clock, in any thread. The alarm needs neither memory, nor the GIL, nor an event loop, except on
        Windows.
        """
        if sys.platform == "win32":
            self._timer = threading.Timer(seconds, os._exit, (1,))
            self._timer.daemon = True
            self._timer.start()
        else:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def call_off(self) -> None:
        """Call it off, in the main thread. Idempotent."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        elif self._timer is not None:
            self._timer.cancel()
