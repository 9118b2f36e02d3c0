"""A helper process for work that may never end: it has limits of time and memory, and can be ended at any moment.

A template may compute for any time within one bytecode, and a schema compiles within one call into a library: no thread
of ours could be stopped there. The functions that run in the process are in `helper_process`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pyllmcancel.errors import BusyError, EngineClosedError, Error
from pyllmcancel.pausing import Pause, no_pause
from pyllmcancel.system import cpu_time, start_with_socket, wait_readable

logger = logging.getLogger("pyllmcancel.server")
A = TypeVar("A")
T = TypeVar("T")

CPU_SECONDS = 2.0  # of one call
OPENING_CPU_SECONDS = 10.0  # libraries are loaded, and a template is rendered dozens of times to find out its needs
WALL_SECONDS = 30.0  # of one call but the first; on a busy machine the limit of a processor's time comes first
STUCK_SECONDS = 1.0  # without any time of a processor: stopped, frozen, or swapped out
PATIENT_SECONDS = 5.0  # likewise, of the second attempt: the machine may be busy
START_SECONDS = 90.0  # of the start and the first call
MEMORY_MIB = 512  # above the memory at its start
MAX_ANSWER = 64 << 20  # bytes
LOOK_EVERY = 0.05  # seconds between two checks that the caller still waits
CLOSING_SECONDS = 1.0  # from the end of its connection until a process has ended, on a busy machine
HEAD = 8  # bytes of a message's length
CLOSED = "the server is shutting down"


class HelperError(Exception):
    """The process reported an error."""


class HelperEnded(HelperError):  # noqa: N818 - it did not fail, it was ended
    """The process exceeded its time or memory; the message says which."""


class HelperLost(HelperError):  # noqa: N818
    """The process was killed or stopped from outside, for lack of memory for example. The call is not to blame."""


class Helper:
    """One process, started by the first call, and again after it was ended. Any thread may call any method.

    Each new process first gets the `opening` call: a name and arguments. The others have `cpu_seconds` each.
    """

    def __init__(self, *opening: Any, cpu_seconds: float = CPU_SECONDS) -> None:
        self._opening = opening
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()  # held for a whole call: the process does one thing at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._opened: Any = None
        self._opens_until: float | None = None  # set until the answer to the opening call has come
        self._closed = False

    def begin(self) -> None:
        """Start the process if there is none, without waiting. `open` reports errors."""
        with self._lock, contextlib.suppress(HelperError, Error):
            if self._process is None:
                self._begin()

    def open(self) -> Any:
        """Start the process if there is none; return the result of the opening call, or raise its HelperError.

        EngineClosedError: the helper was closed. BusyError: the system has no descriptor, or no room for a process, or
        ends the process again and again, or the process gives no answer although its call may go on.
        """
        with self._lock:
            self._once_more(lambda _: self._ensure(no_pause))
            return self._opened

    def call(self, name: str, *arguments: Any, pause: Pause = no_pause) -> Any:
        """Call the function of that name in the process, and return its result.

        `pause` is called now and then; an error that it raises ends the process, and is raised here. HelperError: the
        call failed, and the next one finds a process. BusyError and EngineClosedError as for `open`.
        """
        while not self._lock.acquire(timeout=LOOK_EVERY):
            pause()
        try:
            return self._once_more(lambda stuck_after: self._call([name, *arguments], pause, stuck_after))
        finally:
            self._lock.release()

    def _call(self, message: list[Any], pause: Pause, stuck_after: float) -> Any:
        self._ensure(pause)
        look = self._unless_stuck(pause, stuck_after)
        return self._answer(self._ask(message, WALL_SECONDS, look), look)

    def _once_more(self, attempt: Callable[[float], Any]) -> Any:
        """Return the result of the first attempt, or of the second, more patient one if the process was lost."""
        try:
            return attempt(STUCK_SECONDS)
        except HelperLost as error:
            logger.warning("a helper process is started again: %s", error)
        try:
            return attempt(PATIENT_SECONDS)
        except HelperLost as error:
            raise BusyError(f"no helper process survives at present: {error}") from error

    def _unless_stuck(self, pause: Pause, seconds: float) -> Pause:
        """Return a pause that also raises HelperLost after `seconds` in which the process used no processor."""
        assert self._process is not None
        pid = self._process.pid
        used, since = cpu_time(pid), time.monotonic()

        def look() -> None:
            nonlocal used, since
            pause()
            now = cpu_time(pid)
            if now is None or now != used:
                used, since = now, time.monotonic()
            elif time.monotonic() - since > seconds:
                raise HelperLost("it was stopped")

        return look

    def close(self) -> None:
        """End the process, whatever it is doing, and start none again. Idempotent."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # a call in progress notices its end
        with self._lock:
            self._end()

    def _ensure(self, pause: Pause) -> None:
        if self._process is None or self._process.poll() is not None:
            self._begin()
        if self._opens_until is not None:
            self._finish_opening(pause)

    def _begin(self) -> None:
        if self._closed:
            raise EngineClosedError(CLOSED)
        self._end()  # it was ended from outside
        try:
            self._start()
            self._opens_until = self._ask(list(self._opening), START_SECONDS, no_pause)
        except OSError as error:
            self._end()
            raise BusyError(f"no process can be started at present: {error.strerror}") from error

    def _finish_opening(self, pause: Pause) -> None:
        """Wait for the opening call. A caller that gives up leaves the process to the next caller."""
        assert self._socket is not None
        assert self._opens_until is not None
        look = self._unless_stuck(no_pause, WALL_SECONDS)  # it may wait for a slow disk
        while not (answers := wait_readable(self._socket, LOOK_EVERY)) and time.monotonic() < self._opens_until:
            pause()
            with self._ended_unless_done():
                look()
        # The answer may have come in time, long before anybody needed the process.
        deadline = time.monotonic() + WALL_SECONDS if answers else self._opens_until
        try:
            self._opened = self._answer(deadline, no_pause)
        except (Error, HelperError):
            self._end()
            raise
        self._opens_until = None

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-P", "-m", "pyllmcancel.chat.helper_process")
            self._process = start_with_socket([*command, str(self._cpu_seconds), str(MEMORY_MIB)], theirs)
        if self._closed:
            self._process.kill()  # close() may have come before there was a process to end

    def _ask(self, message: list[Any], seconds: float, pause: Pause) -> float:
        """Send a message; return until when it must be answered."""
        deadline = time.monotonic() + seconds
        text = json.dumps(message).encode()
        with self._ended_unless_done():
            self._send(len(text).to_bytes(HEAD, "little") + text, deadline, pause)
        return deadline

    def _answer(self, deadline: float, pause: Pause) -> Any:
        with self._ended_unless_done():
            length = int.from_bytes(self._receive(HEAD, deadline, pause), "little")
            if length > MAX_ANSWER:
                raise HelperEnded(f"the result is longer than {MAX_ANSWER >> 20} MiB")
            answer = json.loads(self._receive(length, deadline, pause))
        if answer["last"]:
            self._end()
        if "error" in answer:
            raise HelperError(answer["error"])
        return answer["result"]

    @contextlib.contextmanager
    def _ended_unless_done(self) -> Iterator[None]:
        """End the process if there is no answer in time, or if the caller gives up."""
        done = False
        try:
            yield
            done = True
        except TimeoutError:
            raise self._cause(LOOK_EVERY) from None
        except (OSError, EOFError):
            raise self._cause(CLOSING_SECONDS) from None
        finally:
            if not done:
                self._end()

    def _send(self, message: bytes, deadline: float, pause: Pause) -> None:
        assert self._socket is not None
        rest = memoryview(message)
        while rest:
            rest = rest[self._in_time(self._socket.send, rest, deadline, pause) :]

    def _receive(self, length: int, deadline: float, pause: Pause) -> bytes:
        assert self._socket is not None
        received = bytearray()
        while len(received) < length:
            piece = self._in_time(self._socket.recv, min(length - len(received), 1 << 20), deadline, pause)
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)

    def _in_time(self, transfer: Callable[[A], T], what: A, deadline: float, pause: Pause) -> T:
        """Return the result of the socket's method, which may have to wait."""
        assert self._socket is not None
        while (left := deadline - time.monotonic()) > 0.0:
            self._socket.settimeout(min(left, LOOK_EVERY))
            try:
                return transfer(what)
            except TimeoutError:
                pause()
        raise TimeoutError

    def _cause(self, patience: float) -> Error | HelperError:
        """Return why the process gave no answer; it has `patience` seconds to end. A lack of memory is a guess."""
        assert self._process is not None
        if self._closed:
            return EngineClosedError(CLOSED)
        try:
            status = self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:  # it is still running
            status = -signal.SIGALRM
        match -status:
            case signal.SIGALRM:
                return BusyError("a helper process gave no answer in time: the machine is too busy")
            case signal.SIGPROF:
                seconds = self._cpu_seconds if self._opens_until is None else OPENING_CPU_SECONDS
                return HelperEnded(f"it takes longer than {seconds:g} s")
            case signal.SIGKILL:
                return HelperLost("it was killed")
            case signal.SIGSEGV:
                return HelperEnded("it is nested too deeply")
        return HelperEnded(f"it needs more than {MEMORY_MIB} MiB of memory")

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
            self._process = None
        self._opens_until = None
