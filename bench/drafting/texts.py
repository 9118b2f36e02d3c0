"""Source code of the standard library: places in functions to type at, and functions to edit."""

from __future__ import annotations

import ast
import hashlib
import random
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Purpose = Literal["tuning", "measuring"]
PURPOSES: tuple[Purpose, Purpose] = ("tuning", "measuring")
LINES = range(12, 31)  # of a function
PREFIX = 1200  # characters before a cursor: some 350 tokens


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method: its lines, and the lines of its file before them."""

    file: str
    name: str
    before: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def source(self) -> str:
        """Without the indentation of a method."""
        return textwrap.dedent("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class Place:
    """The beginning of a line in a function, and the text before this place."""

    file: str
    prefix: str


def purpose_of(file: str) -> Purpose:
    """Return the one purpose that a file's text serves, by the hash of its name."""
    return PURPOSES[hashlib.sha256(file.encode()).digest()[0] % 2]


def functions(purpose: Purpose, chance: random.Random) -> list[Function]:
    """Return the fitting functions of this purpose's files, in a random order."""
    paths = [path for path in sorted(Path(ast.__file__).parent.glob("*.py")) if purpose_of(path.name) == purpose]
    found = [function for path in paths for function in functions_in(path)]
    chance.shuffle(found)
    return found


def functions_in(path: Path) -> Iterator[Function]:
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        begin, end = node.lineno - 1, node.end_lineno
        if end - begin in LINES:
            yield Function(path.name, node.name, tuple(lines[:begin]), tuple(lines[begin:end]))


def place_in(function: Function, chance: random.Random) -> Place:
    """Return a place some lines after the function's first."""
    n_lines = chance.randrange(4, len(function.lines) - 4)
    text = "\n".join([*function.before, *function.lines[:n_lines], ""])
    _, _, whole_lines = text[-PREFIX:].partition("\n")
    return Place(function.file, whole_lines)
