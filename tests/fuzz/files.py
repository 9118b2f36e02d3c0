"""Files that a server reads: prefixes that it kept on disk, and the models that a preset names."""

import json
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from pyllmcancel.errors import UsageError
from pyllmcancel.front.preset import read_preset
from pyllmcancel.scheduling.prefix_file import MAGIC, PREAMBLE, DamagedFileError, packed, read_head, read_states

MAX_SIZE = 1 << 16  # bytes of tokens, and of each state
PROMPT = packed([1, 2, 3, 4])


def prefix_files(data: bytes) -> None:
    """A prefix's file whose checksums are right if its head is JSON: what else it says is to be checked, too."""
    from pyllmcancel import _native

    path = folder() / "file.prefix"
    path.write_bytes(file_of(data))
    with path.open("rb") as file:
        try:
            head = read_head(file)
            prefix = read_states(file, head, _native.SwappedPrefix.blank)
        except (DamagedFileError, UsageError):
            return
    assert 0 <= head.usable(PROMPT, 4) <= 3
    assert head.holder.n_usable(head.holder) >= 0
    if prefix is not None:
        assert packed(prefix.tokens) == head.tokens
        assert [(n_tokens, len(state)) for n_tokens, state in prefix.parts] == [part[:2] for part in head.parts]


def file_of(data: bytes) -> bytes:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return MAGIC + data
    rest = b""
    if isinstance(fields, dict):
        rest = with_checksum(fields.get("tokens"), 0)
        for part in parts if isinstance(parts := fields.get("parts"), list) else ():
            rest += with_checksum(part, 1)
    text = json.dumps(fields).encode()
    return PREAMBLE.pack(MAGIC, len(text), zlib.crc32(text)) + text + rest


def with_checksum(fields: Any, size_at: int) -> bytes:
    """The bytes whose size stands in a list of `fields`; the list gets their checksum."""
    match fields[size_at:] if isinstance(fields, list) else None:
        case [int(size), _] if 0 <= size <= MAX_SIZE:
            found = bytes(range(256)) * (size // 256 + 1)
            fields[size_at + 1] = zlib.crc32(found[:size])
            return found[:size]
    return b""


def presets(data: bytes) -> None:
    """A file of models and their options, as TOML or as llama-server has it."""
    path = folder() / ("preset.toml" if data[:1] == b"t" else "preset.ini")
    path.write_bytes(data[1:])
    try:
        sections = read_preset(path)
    except UsageError:
        return
    for name, options in sections.items():
        assert isinstance(name, str)
        assert all(isinstance(text, str) for option in options.items() for text in option)


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())
