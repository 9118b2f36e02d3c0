"""A prefix in a file: a head, the tokens, the states. Each of them has a checksum, and the file's size is known.

A file is believed as a whole or not at all. It is written under another name, and renamed when the disk has it: after
a crash there is the whole file, or none. The head says what the states belong to: the owner, and the identity of the
model, the build and the cells (`pyllmcancel.engine.state_identity`).
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from pyllmcancel.adapters import UNADAPTED, Adapted
from pyllmcancel.drafting.lookup import n_common
from pyllmcancel.errors import Error
from pyllmcancel.pausing import Pause
from pyllmcancel.scheduling.swap_space import Holder

if TYPE_CHECKING:
    from pyllmcancel._native import SwappedPrefix

MAGIC = b"PLLMC\x00\x00\x02"  # the last byte is the format's number
PREAMBLE = struct.Struct("<8sII")  # the magic bytes, the length and the checksum of the head
MAX_HEAD = 1 << 20
BYTES_PER_TOKEN = 4
AT_ONCE = 8 << 20  # bytes read or written by one call of the system
MAX_SHOWN = 48  # characters of a file's name in that of the temporary one: a name has 255 bytes at most

Blank = Callable[[Sequence[int], int, Sequence[tuple[int, int]]], "tuple[SwappedPrefix, list[memoryview]] | None"]


class DamagedFileError(Error):
    """A file that is no prefix, was cut, or was changed."""


class Part(NamedTuple):
    """A state of a prefix: of its first `n_tokens` tokens."""

    n_tokens: int
    n_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a file, and the tokens, packed."""

    identity: str  # stands for everything that the states depend on
    owner: str  # this, `in_session` and `adapted` are as in `pyllmcancel.scheduling.swap_space.Holder`
    in_session: bool
    least: int  # fewer tokens than these can be reused from a checkpoint only
    tokens: bytes
    parts: tuple[Part, ...]  # the state of all tokens, then the checkpoints, shortest first
    adapted: Adapted = UNADAPTED

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // BYTES_PER_TOKEN

    @property
    def holder(self) -> Holder:
        return Holder(self.owner, self.in_session, self.adapted)

    def usable(self, prompt: bytes, limit: int) -> int:
        """Return how many tokens, `limit` at most, a prompt of these packed tokens could reuse; never its last one."""
        n_tokens = min(limit, n_common(self.tokens, prompt[:-BYTES_PER_TOKEN]))
        if n_tokens >= self.least:
            return n_tokens
        return max((part.n_tokens for part in self.parts[1:] if part.n_tokens <= n_tokens), default=0)

    def packed(self) -> bytes:
        """Return the beginning of the file, up to the tokens."""
        fields = {
            "identity": self.identity,
            "owner": self.owner,
            "in_session": self.in_session,
            "adapted": self.adapted,
            "least": self.least,
            "tokens": [len(self.tokens), zlib.crc32(self.tokens)],
            "parts": self.parts,
        }
        text = json.dumps(fields).encode()
        return PREAMBLE.pack(MAGIC, len(text), zlib.crc32(text)) + text


def packed(tokens: Sequence[int]) -> bytes:
    return array("i", tokens).tobytes()


def head_of(prefix: SwappedPrefix, identity: str, holder: Holder) -> Head:
    """Return the head of a prefix's file. Reads all of the states for their checksums."""
    parts = tuple(Part(n_tokens, len(state), zlib.crc32(state)) for n_tokens, state in prefix.parts)
    owner, in_session, adapted, _ = holder
    return Head(identity, owner, in_session, prefix.least, packed(prefix.tokens), parts, adapted)


def write(path: Path, head: Head, prefix: SwappedPrefix) -> int:
    """Write a file, whole or not at all, readable by this user only; returns its bytes, OSError if that fails."""
    temporary = path.with_name(f".{path.name[:MAX_SHOWN]}.{os.urandom(4).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(head.packed())
            file.write(head.tokens)
            for _, state in prefix.parts:
                for begin in range(0, len(state), AT_ONCE):
                    file.write(state[begin : begin + AT_ONCE])
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return size


def sync_folder(folder: Path) -> None:
    """Have the disk note the names in a folder, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_head(file: IO[bytes]) -> Head:
    """Read and check everything but the states; DamagedFileError if anything is wrong."""
    preamble = file.read(PREAMBLE.size)
    if len(preamble) < PREAMBLE.size or preamble[: len(MAGIC)] != MAGIC:
        raise DamagedFileError("the file is no prefix of this version of pyllmcancel")
    _, length, checksum = PREAMBLE.unpack(preamble)
    text = file.read(length) if length <= MAX_HEAD else b""
    if len(text) != length or zlib.crc32(text) != checksum:
        raise DamagedFileError("the file's head is damaged")
    fields = fields_of(text)
    parts = tuple(Part(*part) for part in fields["parts"])
    n_token_bytes, token_checksum = fields["tokens"]
    expected = PREAMBLE.size + length + n_token_bytes + sum(part.n_bytes for part in parts)
    if os.fstat(file.fileno()).st_size != expected:
        raise DamagedFileError("the file was cut, or has grown")
    tokens = file.read(n_token_bytes)
    if len(tokens) != n_token_bytes or zlib.crc32(tokens) != token_checksum:
        raise DamagedFileError("the file's tokens are damaged")
    scales, begin = fields["adapted"]
    adapted = Adapted(tuple((number, scale) for number, scale in scales), begin)
    return Head(fields["identity"], fields["owner"], fields["in_session"], fields["least"], tokens, parts, adapted)


def fields_of(text: bytes) -> dict[str, Any]:
    """Return the fields of a head; DamagedFileError if they are not those that `Head.packed` writes.

    A checksum says only that the file is as it was written, not that this version has written it.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    match fields:
        case {
            "identity": str(),
            "owner": str(),
            "in_session": bool(),
            "adapted": [[*scales], int()],
            "least": int(least),
            "tokens": [int(n_bytes), int()],
            "parts": [*parts],
        } if n_bytes >= 0 and n_bytes % BYTES_PER_TOKEN == 0:
            n_tokens = n_bytes // BYTES_PER_TOKEN
            # Sizes are compared with the file's next, and so may be any that are not negative.
            if (
                0 <= least <= n_tokens
                and all(_are(part, int, int, int) and 0 <= part[0] <= n_tokens and part[1] >= 0 for part in parts)
                and all(_are(pair, int, int | float) for pair in scales)
            ):
                return cast("dict[str, Any]", fields)
    raise DamagedFileError("the file's head is not one that this version writes")


def _are(values: object, *kinds: Any) -> bool:
    """Return whether this is a list of such values."""
    return (
        isinstance(values, list)
        and len(values) == len(kinds)
        and all(isinstance(value, kind) for value, kind in zip(values, kinds, strict=True))
    )


def read_states(file: IO[bytes], head: Head, blank: Blank, check: Pause = lambda: None) -> SwappedPrefix | None:
    """Read and check the states, after `read_head`; None if there is no memory for them, DamagedFileError if anything
    is wrong. `check` is called before each piece, and may raise.
    """
    made = blank(array("i", head.tokens).tolist(), head.least, [part[:2] for part in head.parts])
    if made is None:
        return None
    prefix, states = made
    for part, state in zip(head.parts, states, strict=True):
        checksum = 0
        for begin in range(0, part.n_bytes, AT_ONCE):
            check()
            piece = state[begin : begin + AT_ONCE]
            if cast("Any", file).readinto(piece) != len(piece):
                raise DamagedFileError("the file was cut")
            checksum = zlib.crc32(piece, checksum)
        if checksum != part.checksum:
            raise DamagedFileError("a state in the file is damaged")
    return prefix
