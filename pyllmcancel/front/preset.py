"""``--models-preset``: a file of models and their options, as llama-server reads it, or as TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyllmcancel.errors import UsageError

EVERY = "*"
HEADING = re.compile(r"\[([^]]+)\]\s*([;#].*)?")
COMMENT = re.compile(r"\s*[;#].*")
Section = dict[str, str]


def read_preset(path: Path) -> dict[str, Section]:
    """Return the options of each section by their names, ``*``'s merged into all others.

    Raises
    ------
    OSError, UsageError
        The file cannot be read, or a line of it cannot.
    """
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} must be UTF-8: {error}") from None
    sections = of_toml(text, path) if path.suffix.lower() == ".toml" else of_ini(text, path)
    common = sections.pop(EVERY, {})
    return {name: common | section for name, section in sections.items()}


def of_ini(text: str, path: Path) -> dict[str, Section]:
    """Parse llama-server's format. `configparser` differs from it: it keeps no case of keys, and replaces ``%``."""
    sections: dict[str, Section] = {}
    section: Section = {}  # what comes before the first section: the version
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if (heading := HEADING.fullmatch(line)) is not None:
            section = sections.setdefault(heading[1].strip(), {})
        elif option := COMMENT.sub("", line):
            key, separator, value = option.partition("=")
            if not separator or not key.strip():
                raise UsageError(f"{path}, line {number}: must be KEY = VALUE or [NAME], not {line!r}")
            section[key.strip()] = value.strip()
    return sections


def of_toml(text: str, path: Path) -> dict[str, Section]:
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: for numbers and nesting without end, too
        raise UsageError(f"{path}: {error}") from None
    return {name: dict(texts(name, table, path)) for name, table in read.items() if name != "version"}


def texts(name: str, table: object, path: Path) -> Iterator[tuple[str, str]]:
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: {name} must be a table of options")
    for key, value in table.items():
        if isinstance(value, bool):
            yield key, "true" if value else "false"
        elif isinstance(value, str | int | float):
            yield key, str(value)
        elif isinstance(value, list):
            yield key, ",".join(map(str, value))
        else:
            raise UsageError(f"{path}: {name}.{key} must be a text, a number, a boolean or a list")
