"""The rows of the tables of options: each gives an option its spellings, its variable in the environment and its text.

In a row's `names` the first spelling also names the variable, and the word at the end, if there is one, stands for the
value: ``--port -p N``. The default is added to the text, unless that has brackets of its own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyllmcancel.cli.converters import OFF, ON, one_of

Does = Callable[[Any, argparse.Namespace, Any, Any], object]
Converter = Callable[[str], Any] | tuple[str, ...]  # of a text, or the allowed words


class Action(argparse.Action):
    """Calls a function with the parser, the namespace, the value and the spelling that was given."""

    def __init__(self, *args: Any, does: Does, **options: Any) -> None:
        super().__init__(*args, **options)
        self.does = does

    def __call__(self, *given: Any) -> None:
        self.does(*given)


@dataclass(frozen=True, slots=True)
class Option:
    """An option with a value."""

    names: str
    convert: Converter
    default: Any
    text: str
    bare: str | None = None  # its meaning without a value; None: it needs one
    does: Does | None = None  # called with the value; None: the value is kept

    def add(self, group: argparse._ArgumentGroup, spellings: list[str], value: str, variable: str) -> None:
        choices = self.convert if isinstance(self.convert, tuple) else None
        group.add_argument(
            *spellings,
            type=self.convert if choices is None else one_of(choices),  # type: ignore[arg-type]
            # argparse converts a default that is a string by `type`, as it does a given value.
            default=os.environ.get(variable, self.default),
            metavar=value or "|".join(choices or ()),
            choices=choices,
            nargs=None if self.bare is None else "?",
            const=self.bare,
            help=explained(variable, self.text, self.default),
            action="store" if self.does is None else partial(Action, does=self.does),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class Switch:
    """``--name`` and ``--no-name``; in the environment one of `ON` or `OFF`. None: other options decide."""

    names: str
    default: bool | None
    text: str

    def add(self, group: argparse._ArgumentGroup, spellings: list[str], _value: str, variable: str) -> None:
        given = os.environ.get(variable)
        default = self.default if given is None else _switched_on(variable, given.strip().lower())
        text = explained(variable, self.text, None)
        group.add_argument(*spellings, action=argparse.BooleanOptionalAction, default=default, help=text)


@dataclass(frozen=True, slots=True)
class Several:
    """An option that may be repeated, or have several values separated by commas; without it the environment counts."""

    names: str
    convert: Callable[[str], Any]
    text: str

    def add(self, group: argparse._ArgumentGroup, spellings: list[str], value: str, variable: str) -> None:
        group.add_argument(
            *spellings,
            type=lambda given: tuple(self.convert(part.strip()) for part in given.split(",") if part.strip()),
            default=os.environ.get(variable, ""),
            action=partial(Action, does=partial(_join, dest_of(self.names))),  # type: ignore[arg-type]
            metavar=value,
            help=explained(variable, self.text, None),
        )


@dataclass(frozen=True, slots=True)
class Print:
    """An option that has no value and no variable: it only prints, and ends the program."""

    names: str
    text: str
    does: Does | None = None

    def add(self, group: argparse._ArgumentGroup, spellings: list[str], *_: str) -> None:
        options: Any = {"action": "store_true"} if self.does is None else silent(self.does)
        group.add_argument(*spellings, help=self.text, **options)


Row = Option | Switch | Several | Print


def add_rows(group: argparse._ArgumentGroup, rows: Iterable[Row], scope: str = "") -> None:
    """Add options. `scope` is in the names of their variables, where two commands have an option of one name."""
    for row in rows:
        spellings, value = split(row.names)
        row.add(group, spellings, value, variable_of(scope + spellings[0]))


def silent(does: Does, nargs: int | str = 0) -> dict[str, Any]:
    """Return what argparse needs to know of an option that calls a function, and leaves nothing in the namespace."""
    action = partial(Action, does=does)
    return {"action": action, "nargs": nargs, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}


def split(names: str) -> tuple[list[str], str]:
    """Return the spellings, and the word for the value; empty if there is none."""
    words = names.split()
    return (words, "") if words[-1].startswith("-") else (words[:-1], words[-1])


def dest_of(names: str) -> str:
    """Return the name of an option's value in the namespace."""
    return split(names)[0][0][2:].replace("-", "_")


def variable_of(name: str) -> str:
    """Return the variable of an option, given with its dashes or without."""
    return "PYLLMCANCEL_" + name.replace("--", "").upper().replace("-", "_")


def explained(variable: str, text: str, default: Any) -> str:
    shown = "" if default is None or default == "" else f" [{default}]"
    return f"{text}{shown} (env: {variable})".replace("%", "%%")


def _join(dest: str, _parser: Any, namespace: argparse.Namespace, values: Any, _spelling: Any) -> None:
    before = getattr(namespace, dest)
    # Still the text of the default? Then this is the first occurrence, and it replaces the default.
    setattr(namespace, dest, (*(before if isinstance(before, tuple) else ()), *(values or ())))


def _switched_on(variable: str, text: str) -> bool:
    if text in ON or text in OFF:
        return text in ON
    raise SystemExit(f"pyllmcancel: {variable} must be one of {', '.join(ON + OFF)}, not {text!r}")
