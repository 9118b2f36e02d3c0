"""The floor below the copies in plain memory: idle prefixes in files, which survive a restart.

Nothing here makes a step wait. The engine thread hands a copy over, or asks for one, and goes on; two threads write and
read files. One prefix is written at a time: the copy of the next one is made when the disk has the last. A request that
waits for a file holds no slot meanwhile.

The two threads have the priority of all others. A thread of a lower one that holds the GIL keeps it for as long as
other programs want the cores, and every thread waits.

The files' thread first learns the `identity` of everything that a prefix depends on. Until that is known, nothing is
read or written.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import UsageError, error_text
from pyllmcancel.pausing import Pause
from pyllmcancel.placement import gib
from pyllmcancel.scheduling.prefix_file import Blank, DamagedFileError, head_of, packed, read_head, read_states
from pyllmcancel.scheduling.swap_space import MAX_COPIED_PER_REUSED, MIN_SHARED_TOKENS, Fetched, Holder

if TYPE_CHECKING:
    from pyllmcancel._native import SwappedPrefix
    from pyllmcancel.scheduling.prefix_folder import Entry, PrefixFolder

logger = logging.getLogger("pyllmcancel.engine")

FULL = (errno.ENOSPC, errno.EDQUOT)
UNREADABLE = (errno.ENOENT, errno.EIO)  # the file, not the process, is the reason
REFUSALS = ("damaged", "other_identity", "disk_full", "too_large", "failed")
Call = Callable[[], object]
# A prefix is written unless a file has all but this share of it: each turn of a conversation would write it again.
MAX_MISSING = 1 / 8


class GivenUp(Exception):  # noqa: N818 - no error
    """The engine was closed before the identity was known, or nobody waits any more for a file that is being read."""


class DiskCounts(NamedTuple):
    """Bytes and files there are, and what has happened since the start; `refused` by reason."""

    n_bytes: int
    n_files: int
    n_written: int
    written_bytes: int
    n_restored: int
    restored_bytes: int
    refused: dict[str, int]


NOTHING_ON_DISK = DiskCounts(0, 0, 0, 0, 0, 0, dict.fromkeys(REFUSALS, 0))


# The reading of a file for a choice. The engine thread cancels it when nobody waits for the file any more.
Fetch = Future[Fetched | None]


class WorkThread:
    """Makes calls one after the other; none may raise.

    An executor of the standard library would take no more calls, and wait for those that it has, as soon as the main
    thread ends. But other threads may still use the engine then.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=work, args=(self._calls,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Have a call made; it is not made after `close`."""
        self._calls.put(call)

    def close(self, *, finish: bool = False) -> None:
        """Finish the call that is being made and, with `finish`, those that wait; make no other. Idempotent."""
        while not finish:
            try:
                self._calls.get_nowait()
            except Empty:
                break
        self._calls.put(None)
        self._thread.join()


def work(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call


class DiskFloor:
    """Used by the engine thread; `counts` may be called from any thread.

    `identity` returns what prefixes of other models, builds or cells do not have. The files' thread calls it once, with
    a function that raises when the floor is closed: to read a large model's file takes minutes. `blank` is the compiled
    module's `SwappedPrefix.blank`. `wake` is called from another thread when something is done.
    """

    def __init__(self, folder: PrefixFolder, identity: Callable[[Pause], str], blank: Blank) -> None:
        self._folder = folder
        self._blank = blank
        self.wake: Callable[[], object] = lambda: None
        self._identity: str | None = None  # written once, by the files' thread
        self._closing = False  # set by the engine thread
        self._writes = False  # set by the engine thread, cleared by the files' thread
        self._fetches: dict[Hashable, Fetch] = {}
        self._counts = Counter[str]()
        self._refused = Counter[str](damaged=folder.n_damaged)
        self._known: Future[None] = Future()  # done when the identity is known, or cannot be
        self._writer = WorkThread("pyllmcancel-disk-writer")
        self._reader = WorkThread("pyllmcancel-disk-reader")
        self._writer.submit(partial(self._identify, identity))

    def wait_until_known(self, seconds: float) -> None:
        """Wait at most so long for the identity: until prefixes can be found and written."""
        with suppress(TimeoutError):
            self._known.result(seconds)

    def close(self) -> None:
        """Finish the file that is being written, delete what was erased, and leave the folder. Idempotent."""
        self._closing = True
        self._reader.close()
        self._writer.close(finish=True)
        self._folder.close()

    @property
    def counts(self) -> DiskCounts:
        n = self._counts
        done = n["n_written"], n["written_bytes"], n["n_restored"], n["restored_bytes"]
        refused = {reason: self._refused[reason] for reason in REFUSALS}
        return DiskCounts(self._folder.n_bytes, len(self._folder), *done, refused)

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def is_free(self) -> bool:
        """True if a prefix can be handed over."""
        return self._identity is not None and not self._writes

    def lacks(self, tokens: Sequence[int], holder: Holder) -> bool:
        """Return whether a prefix is worth writing: it is long enough, and no file has most of it.

        One with pictures is not: their tokens are this process's, and another's would stand for other pictures.
        """
        if len(tokens) <= MIN_SHARED_TOKENS or self._identity is None or min(tokens) < 0:
            return False
        _, n_found = self._folder.find([*tokens, -1], self._identity, holder, 1 << 31)
        return n_found < len(tokens) * (1 - MAX_MISSING)

    def write(self, prefix: SwappedPrefix, holder: Holder) -> None:
        """Have a prefix written, which `lacks` has asked for; `is_free` must be true."""
        if prefix.n_bytes > self._folder.limit:
            self._refused["too_large"] += 1
            logger.warning("a prefix of %s is larger than --cache-disk-mib", gib(prefix.n_bytes))
            return
        self._writes = True
        self._writer.submit(partial(self._write, prefix, holder))

    def wait_until_free(self, seconds: float) -> bool:
        """Wait at most so long for the file that is being written; return whether there is none, and more can be."""
        if self._identity is None:
            return False
        done = threading.Event()
        self._writer.submit(done.set)
        return done.wait(seconds)

    def _write(self, prefix: SwappedPrefix, holder: Holder) -> None:
        assert self._identity is not None
        try:
            head = head_of(prefix, self._identity, holder)
            entry = self._folder.add(head, prefix)
            self._counts["n_written"] += 1
            self._counts["written_bytes"] += entry.n_bytes
        except Exception as error:
            self._refused["disk_full" if errno_of(error) in FULL else "failed"] += 1
            why = f"a prefix of {prefix.n_tokens} tokens could not be written to disk"
            log_error(why, error)
        finally:
            del prefix
            self._writes = False
            self.wake()

    def erase(self, tokens: Sequence[int], holder: Holder) -> None:
        """Forget the prefixes that `tokens` begins with, and have their files deleted."""
        if self._identity is None:
            return
        forget = partial(self._folder.forget, packed(tokens), self._identity, holder.owner)
        self._writer.submit(partial(self._erase, forget(), forget))

    def _erase(self, found: list[Entry], forget: Callable[[], list[Entry]]) -> None:
        """Delete files, and those that have been written of the same prefixes since."""
        for entry in [*found, *forget()]:
            self._folder.discard(entry)

    # -- reading ------------------------------------------------------------------------------------------------------

    def fetch(self, key: Hashable, tokens: Sequence[int], n_had: int, room: int, holder: Holder) -> bool:
        """Begin to read a file, of at most `room` tokens, that gives a prompt clearly more than the `n_had` tokens that
        are at hand; False if there is no such file. `key` says whose prompt that is, for `is_reading`, `fetched` and
        `drop`.
        """
        if self._identity is None:
            return False
        entry, n_tokens = self._folder.find(tokens, self._identity, holder, room)
        if entry is None or n_tokens < max(n_had, 1) + MIN_SHARED_TOKENS:
            return False
        if entry.head.n_tokens > MAX_COPIED_PER_REUSED * n_tokens:
            return False
        fetch = self._fetches[key] = Fetch()
        self._reader.submit(partial(self._read, entry, fetch))
        return True

    @property
    def n_fetches(self) -> int:
        """The number of prefixes that are being read, or wait for their choices to start."""
        return len(self._fetches)

    def is_reading(self, key: Hashable) -> bool:
        fetch = self._fetches.get(key)
        return fetch is not None and not fetch.done()

    def fetched(self, key: Hashable) -> Fetched | None:
        """Return the prefix that was read."""
        fetch = self._fetches.get(key)
        return fetch.result() if fetch is not None and fetch.done() else None

    def drop(self, key: Hashable) -> None:
        """Forget what was read, or is being read. Idempotent."""
        fetch = self._fetches.pop(key, None)
        if fetch is not None:
            fetch.cancel()

    def _read(self, entry: Entry, fetch: Fetch) -> None:
        found = None
        try:
            found = self._prefix_of(entry, fetch)
        except GivenUp:
            pass
        except (DamagedFileError, UsageError) as error:
            self._refused["damaged"] += 1
            self._folder.discard(entry)
            logger.warning("%s is not used: %s", entry.path, error)
        except Exception as error:
            self._refused["failed"] += 1
            if errno_of(error) in UNREADABLE:
                self._folder.discard(entry)
            log_error(f"{entry.path} could not be read", error)
        finally:
            with suppress(InvalidStateError):  # it was cancelled
                fetch.set_result(found)
            self.wake()

    def _prefix_of(self, entry: Entry, fetch: Fetch) -> Fetched | None:
        def check() -> None:
            if fetch.cancelled():
                raise GivenUp

        check()
        with open(entry.path, "rb") as file:
            if read_head(file) != entry.head:
                raise DamagedFileError("the file is another one than at the start")
            prefix = read_states(file, entry.head, self._blank, check)
        if prefix is None:
            logger.warning("there is no memory for the prefix in %s", entry.path)
            return None
        self._folder.touch(entry)
        self._counts["n_restored"] += 1
        self._counts["restored_bytes"] += entry.n_bytes
        return Fetched(prefix, entry.head.holder)

    # -- the start ----------------------------------------------------------------------------------------------------

    def _identify(self, identity: Callable[[Pause], str]) -> None:
        def check() -> None:
            if self._closing:
                raise GivenUp

        try:
            self._note_identity(identity(check))
        except GivenUp:
            pass
        except Exception:
            logger.exception("no prefixes are kept on disk, because the model's file could not be read")
        finally:
            self._known.set_result(None)

    def _note_identity(self, known: str) -> None:
        own = self._folder.entries(known)
        n_others = len(self._folder) - len(own)
        self._refused["other_identity"] += n_others
        owners = len({entry.head.owner for entry in own})
        size = gib(sum(entry.n_bytes for entry in own))
        others = f"; {n_others} of other models, builds or cells are not used" if n_others else ""
        found = (
            f"{len(own)} {'prefix' if len(own) == 1 else 'prefixes'} of {owners} {'owner' if owners == 1 else 'owners'}"
        )
        logger.info("%s, %s, from %s%s", found, size, self._folder.path, others)
        self._identity = known
        self.wake()


def log_error(what: str, error: Exception) -> None:
    """Log an error of the system in one line, and a defect of ours with its traceback."""
    is_defect = errno_of(error) is None
    level = logging.ERROR if is_defect else logging.WARNING
    logger.log(level, "%s: %s", what, error_text(error), exc_info=is_defect)


def errno_of(error: Exception) -> int | None:
    """Return the system's number of an error; None for a defect of ours."""
    return error.errno if isinstance(error, OSError) else None
