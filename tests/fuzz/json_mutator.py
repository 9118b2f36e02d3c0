"""Changes to JSON texts that keep them JSON: bytes changed at random rarely get past the parser.

The words are those of the corpus: each value and each field's name of its files may take the place of another.
"""

import json
import random
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", " ", "\0", "\ud800", "größer", "a" * 300, "data:image/png;base64,", "[]", "{}", [], {}, [[]], [None]),
)
MAX_CHANGES = 4
Place = tuple[Any, Any]  # a list or an object, and the index or the key in it


class JsonMutator:
    """A custom mutator of Atheris, for inputs that are JSON after a `head` of some bytes."""

    def __init__(self, corpus: Iterable[bytes], head: int = 0) -> None:
        self._head = head
        self._values: list[Any] = list(ODD)
        self._keys: list[str] = [""]
        for text in corpus:
            self._learn(read(text[head:]))

    def __call__(self, data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        value = read(data[self._head :])
        if value is None or chance.random() < 0.1:
            return spoiled(data, chance)[:max_size]
        head = bytes(chance.randrange(256) if chance.random() < 0.3 else byte for byte in data[: self._head])
        root = [value]
        for _ in range(chance.randint(1, MAX_CHANGES)):
            self._change(root, chance)
        text = head + json.dumps(root[0] if root else None).encode()
        return text if len(text) <= max_size else data

    def _learn(self, value: Any) -> None:
        for holder, key in places([value]):
            if holder[key] not in self._values:
                self._values.append(holder[key])
            if isinstance(key, str) and key not in self._keys:
                self._keys.append(key)

    def _change(self, root: list[Any], chance: random.Random) -> None:
        holder, key = chance.choice(list(places(root)) or [(root, 0)])
        match chance.randrange(7):
            case 0 if holder is not root:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(self._keys)] = self._word(chance)
            case 2 if isinstance(holder, dict):
                holder[chance.choice(self._keys)] = holder.pop(key)
            case 3 if isinstance(holder, list) and holder is not root:
                holder.insert(key, deepcopy(holder[key]))
            case 4 if isinstance(holder, list) and holder is not root:
                holder.insert(key, self._word(chance))
            case 5:
                holder[key] = [holder[key]] if chance.random() < 0.5 else {chance.choice(self._keys): holder[key]}
            case _:
                holder[key] = self._word(chance)

    def _word(self, chance: random.Random) -> Any:
        return deepcopy(chance.choice(self._values if chance.random() < 0.8 else ODD))


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with some of them changed, left out or repeated. Atheris' own mutator is not to be had here."""
    for _ in range(chance.randint(1, MAX_CHANGES)):
        begin = chance.randrange(len(data) + 1)
        end = begin + chance.choice((0, 1, 1, 2, 8))
        middle = (b"", bytes([chance.randrange(256)]), data[begin:end] * 2)[chance.randrange(3)]
        data = data[:begin] + middle + data[end:]
    return data


def places(root: list[Any]) -> Iterable[Place]:
    """Iterate over the places of all values below `root`."""
    waiting: list[Any] = [root]
    while waiting:
        holder = waiting.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def read(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
