"""A GGUF file taken apart and put together again, byte by byte: what the gguf package refuses to write can be written.

Values are what the file holds and nothing more: strings are bytes, numbers are packed as their type says, and no key is
checked. So a key can be NaN, not UTF-8, of another type, or missing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from gguf import GGUFValueType as Type

ALIGNMENT = 32
NUMBERS = "UINT8 INT8 UINT16 INT16 UINT32 INT32 FLOAT32 BOOL UINT64 INT64 FLOAT64"
FORMATS = {Type[name]: form for name, form in zip(NUMBERS.split(), "BbHhIif?Qqd", strict=True)}


@dataclass(slots=True, frozen=True)
class Value:
    """The value of a key: of one type or, with an `item` type, an array of that."""

    type: Type
    value: Any
    item: Type | None = None

    def packed(self) -> bytes:
        if self.item is None:
            return struct.pack("<I", self.type) + pack(self.type, self.value)
        values = b"".join(pack(self.item, value) for value in self.value)
        return struct.pack("<IIQ", self.type, self.item, len(self.value)) + values


@dataclass(slots=True, frozen=True)
class TensorInfo:
    """The header's entry of a tensor: sizes as ggml has them, the type's number, where its data begins."""

    name: bytes
    sizes: tuple[int, ...]
    type: int
    offset: int

    def packed(self) -> bytes:
        sizes = struct.pack(f"<I{len(self.sizes)}q", len(self.sizes), *self.sizes)
        return pack(Type.STRING, self.name) + sizes + struct.pack("<IQ", self.type, self.offset)


@dataclass(slots=True)
class GgufBytes:
    """The parts of a file: keys, tensors, and the data of these."""

    keys: dict[bytes, Value] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)
    data: bytes = b""

    @classmethod
    def read(cls, path: Path) -> Self:
        reader = _Reader(path.read_bytes())
        magic, version, n_tensors, n_keys = reader.unpack("4sIQQ")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path}: not a GGUF file of version 3")
        keys = {}
        for _ in range(n_keys):
            key = reader.string()
            keys[key] = reader.value()
        tensors = [reader.tensor() for _ in range(n_tensors)]
        begin = -(-reader.offset // ALIGNMENT) * ALIGNMENT
        return cls(keys, tensors, reader.content[begin:])

    def listed(self, key: str, kept: slice) -> list[Any]:
        """Return a part of an array, its texts decoded."""
        return [item.decode() if isinstance(item, bytes) else item for item in self.keys[key.encode()].value[kept]]

    def with_key(self, key: str, value: Value | None) -> GgufBytes:
        """A copy in which `key` has `value`, or is not there."""
        keys = {name: old for name, old in self.keys.items() if name != key.encode()}
        if value is not None:
            keys[key.encode()] = value
        return replace(self, keys=keys)

    def packed(self) -> bytes:
        header = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.keys))
        keys = b"".join(pack(Type.STRING, key) + value.packed() for key, value in self.keys.items())
        head = header + keys + b"".join(tensor.packed() for tensor in self.tensors)
        return head + bytes(-len(head) % ALIGNMENT) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.packed())
        return path


def pack(kind: Type, value: Any) -> bytes:
    if kind is Type.STRING:
        text = value.encode() if isinstance(value, str) else bytes(value)
        return struct.pack("<Q", len(text)) + text
    return struct.pack("<" + FORMATS[kind], value)


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.offset = 0

    def unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self.content, self.offset)
        self.offset += struct.calcsize("<" + form)
        return values

    def string(self) -> bytes:
        (length,) = self.unpack("Q")
        self.offset += length
        return self.content[self.offset - length : self.offset]

    def item(self, kind: Type) -> Any:
        return self.string() if kind is Type.STRING else self.unpack(FORMATS[kind])[0]

    def value(self) -> Value:
        kind = Type(self.unpack("I")[0])
        if kind is not Type.ARRAY:
            return Value(kind, self.item(kind))
        item, length = self.unpack("IQ")
        if Type(item) is Type.STRING:
            return Value(kind, [self.string() for _ in range(length)], Type.STRING)
        return Value(kind, list(self.unpack(f"{length}{FORMATS[Type(item)]}")), Type(item))

    def tensor(self) -> TensorInfo:
        name = self.string()
        (n_dims,) = self.unpack("I")
        sizes = self.unpack(f"{n_dims}q")
        return TensorInfo(name, sizes, *self.unpack("IQ"))
