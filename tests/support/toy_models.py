"""Toy models of many architectures, written from short descriptions: names and sizes of tensors, and the keys needed.

The descriptions, ``tests/architectures/shapes.json``, were made from the files that llama.cpp's own generator
writes. The weights are random: a toy says nothing sensible, but what an aborted step leaves
behind in its memory is what it leaves behind in a real model's.
"""

import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tests.support.tiny_models import add_keys, finish

DESCRIPTIONS = Path(__file__).resolve().parents[1] / "architectures" / "shapes.json"
DEVIATION = 0.1  # large enough that the logits tell sequences apart


@dataclass(frozen=True, slots=True)
class Description:
    """One architecture's toy.

    `keys` are the metadata that it does not load, or does not compute the same, without; their names lack the
    architecture. `tensors` are sizes as numpy has them, the reverse of ggml's, by name; a name that ends in ``@0,1``
    stands for the tensors of these layers, with a star where the number goes.
    """

    arch: str
    keys: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]

    def each_tensor(self) -> list[tuple[str, tuple[int, ...]]]:
        found = []
        for pattern, size in self.tensors.items():
            name, _, layers = pattern.partition("@")
            found += [(name.replace("*", layer), size) for layer in layers.split(",")]
        return found


@cache
def descriptions() -> dict[str, Description]:
    """Those of all toys, by name."""
    read = json.loads(DESCRIPTIONS.read_text())
    return {
        name: Description(entry["arch"], entry["keys"], {key: tuple(size) for key, size in entry["tensors"].items()})
        for name, entry in read.items()
    }


def weights(name: str, size: tuple[int, ...]) -> NDArray[np.float32]:
    """Random values that depend on the name alone."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(size, dtype=np.float32)
    values *= np.float32(DEVIATION)
    # A state must decay.
    return -np.abs(values) if "ssm_a" in name else values


def write_toy(path: Path, name: str) -> Path:
    """Write the toy `name` with F32 weights, and with a vocabulary that can neither read text nor write it."""
    return write_described(path, descriptions()[name])


def write_described(path: Path, toy: Description) -> Path:
    writer = GGUFWriter(path, toy.arch)
    add_keys(writer, {f"{toy.arch}.{key}": value for key, value in toy.keys.items()})
    sizes = toy.each_tensor()
    n_vocab = toy.keys.get("vocab_size") or dict(sizes)["token_embd.weight"][0]
    writer.add_tokenizer_model("test")
    writer.add_token_list([f"tok_{i}" for i in range(n_vocab)])
    writer.add_token_scores([0.0] * n_vocab)
    for tensor, size in sizes:
        writer.add_tensor(tensor, weights(tensor, size))
    finish(writer)
    return path
