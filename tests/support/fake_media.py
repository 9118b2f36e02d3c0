"""A fake of the compiled module's projector, for `fake_native`: pictures have rows, and a test can hold an encoding.

A picture is any file whose header `pyllmcancel.media.files` knows. It has ROWS rows between two bytes of text,
or is the error that `MediaEncoder.broken` says.
"""

import struct
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pyllmcancel.errors import ContextBusy, UsageError
from pyllmcancel.media.room import MediaRoom
from tests.support import media_files
from tests.support.fake_model import CancelFlag

ROWS = 6
N_NODES = 8  # of an encoding's graph
BEFORE, AFTER = b"<", b">"


def image_size(data: bytes) -> tuple[int, int] | None:
    """As the real one, of PNG only."""
    if data[:4] != b"\x89PNG" or len(data) < 24:
        return None
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def png(width: int = 2, height: int = 2, content: int = 0) -> bytes:
    """Return a PNG of one colour, which real decoders take, too."""
    return media_files.png(width, height, colour=(content % 256, content // 256 % 256, 128))


class MediaChunk:
    """As the real one."""

    def __init__(self, first_token: int, n_tokens: int, content: bytes, *, non_causal: bool, n_pos: int) -> None:
        self.first_token, self.n_tokens, self.n_pos = first_token, n_tokens, n_pos
        self.non_causal, self.divisible = non_causal, not non_causal and n_pos == n_tokens
        self.content = content
        self._rows: np.ndarray | None = None

    @property
    def tokens(self) -> list[int]:
        return list(range(self.first_token, self.first_token - self.n_tokens, -1))

    @property
    def encoded(self) -> bool:
        return self._rows is not None

    @property
    def n_bytes(self) -> int:
        return 4 * self.n_tokens if self._rows is not None else 16 * self.n_tokens

    def rows(self) -> np.ndarray | None:
        return self._rows

    def encode(self) -> None:
        self._rows = np.full(self.n_tokens, zlib.crc32(self.content), dtype=np.float32)


class Audience:
    """As the real one."""

    def __init__(self) -> None:
        self._flags: list[CancelFlag] = []

    def join(self, flag: CancelFlag) -> None:
        self._flags.append(flag)

    def leave(self) -> None:
        self._flags = []

    def has_left(self) -> bool:
        return all(flag.is_set() for flag in self._flags)


class MediaEncoder:
    """As the real one. `on_encode` is called before each node of a graph, in the thread that computes it."""

    def __init__(
        self, model: Any, path: Any = "", *, n_threads: int = 1, non_causal: bool = False, n_pos: int = ROWS, **_: Any
    ) -> None:
        self.has_vision = self.has_audio = True
        self.sample_rate = 16000
        self.polls = 0
        self.broken: dict[bytes, str] = {}  # by content
        self.fails: set[bytes] = set()  # contents that cannot be encoded
        self.endless: set[bytes] = set()  # contents whose decoding goes on until it is cancelled
        # Set when the decoding of an endless one has begun, and when it has ended.
        self.decoding, self.decoding_ended = threading.Event(), threading.Event()
        self.on_encode: Callable[[MediaChunk, int], None] = lambda _chunk, _node: None
        self.encoded: list[bytes] = []  # in the order in which they were
        self._shape = {"non_causal": non_causal, "n_pos": n_pos}
        self._next = -1
        self._busy = threading.Lock()
        self._trap: tuple[int, CancelFlag] | None = None

    def parts(
        self, data: bytes, *, audio: bool, flag: CancelFlag, seconds: float, first: int | None = None
    ) -> list[list[int] | MediaChunk]:
        if data in self.endless:
            self.decoding.set()
            while not flag.is_set():  # as the core does between two pieces of a file
                time.sleep(0.001)
            self.decoding_ended.set()
        if flag.is_set() or data in self.broken:
            raise UsageError(self.broken.get(data, "cancelled"))
        if first is None:
            first, self._next = self._next, self._next - ROWS
        chunk = MediaChunk(first, ROWS, data, **self._shape)  # type: ignore[arg-type]
        return [list(BEFORE), chunk, list(AFTER)]

    def n_image_tokens(self, width: int, height: int) -> int:
        if width < 1 or height < 1:
            raise UsageError("it cannot be prepared: it has no pixels")
        return len(BEFORE) + ROWS + len(AFTER)

    def encode(self, chunk: MediaChunk, audience: Audience) -> bool:
        if not self._busy.acquire(blocking=False):
            raise ContextBusy("another thread encodes")
        trap, self._trap = self._trap, None
        self.polls = 0
        try:
            for node in range(1, N_NODES + 1):
                if audience.has_left():
                    return False
                self.on_encode(chunk, node)
                self.polls = node
                if trap is not None and node >= trap[0]:
                    trap[1].set()
            if audience.has_left():
                return False
            if chunk.content in self.fails:
                raise UsageError("a picture could not be encoded: it is a test's")
            chunk.encode()
            self.encoded.append(chunk.content)
            return True
        finally:
            self._busy.release()

    def raise_at(self, node: int, flag: CancelFlag) -> None:
        self._trap = node, flag


def bytes_in(room: MediaRoom) -> int:
    """Return the bytes that live prompts hold."""
    with room._lock:
        room._take_back()
        return sum(n_bytes for _, n_bytes in room._held.values())
