"""Reading a model's files into the system's cache, with progress, before llama.cpp maps them.

llama.cpp has the kernel read the whole file in one call, which reports nothing and cannot be cancelled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyllmcancel.engine.host_memory import available_memory, file_size, files_of
from pyllmcancel.errors import LoadCancelled

CHUNK = 4 << 20  # bytes that are read at once
Progress = Callable[[float], bool | None]


def read_uncached(files: Sequence[Path], progress: Progress) -> bool:
    """Read what the system's cache lacks; return whether anything was read. Does nothing but on Linux.

    Raises
    ------
    LoadCancelled
        `progress`, which is called after each chunk that was read, has returned False.
    """
    if sys.platform != "linux":
        return False
    total = sum(file.stat().st_size for file in files)
    buffer, first = bytearray(CHUNK), bytearray(1)
    done, was_read = 0, False
    for file in files:
        with file.open("rb", buffering=0) as opened:
            descriptor = opened.fileno()
            for offset in range(0, file.stat().st_size, CHUNK):
                if not is_cached(descriptor, offset, first):
                    os.preadv(descriptor, [buffer], offset)
                    was_read = True
                    if progress((done + offset) / total) is False:
                        raise LoadCancelled("the load was cancelled while the model's file was read")
        done += file.stat().st_size
    return was_read


def is_cached(descriptor: int, offset: int, first: bytearray) -> bool:
    """Return whether the byte at `offset` can be read without waiting for a disk."""
    if sys.platform != "linux":
        return True
    try:
        return os.preadv(descriptor, [first], offset, os.RWF_NOWAIT) > 0
    except OSError:  # it would wait, or this file system cannot tell
        return False


def read_first(path: Path, progress: Progress) -> Progress:
    """Read a model's files ahead, if memory can hold them; return the progress of the rest of the load."""
    files = [file for file in files_of(path) if file.is_file()]
    memory = available_memory()
    if memory is not None and file_size(path) > memory.available:
        return progress  # the end of the file would drive its beginning out of the cache again
    if not read_uncached(files, lambda fraction: progress(fraction / 2)):
        return progress
    return lambda fraction: progress((1 + fraction) / 2)
