"""Options that can be given on the command line or in the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")


def add_option(
    group: argparse._ArgumentGroup,
    name: str,
    convert: Callable[[str], Any],
    default: Any,
    text: str,
    *,
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
) -> None:
    """Add ``--name``, whose default may come from ``PYLLMCANCEL_NAME``; a bad value there is an error as well."""
    variable = "PYLLMCANCEL_" + name.upper().replace("-", "_")
    shown = "" if default is None else f" [{default}]"
    # A string default goes through `type` like a given value does.
    group.add_argument(
        f"--{name}",
        type=convert if choices is None else one_of(choices),
        default=os.environ.get(variable, default),
        metavar=metavar,
        choices=choices,
        help=f"{text}{shown} (env: {variable})",
    )


def add_switch(group: argparse._ArgumentGroup, name: str, default: bool, text: str) -> None:
    """Add ``--name`` and ``--no-name``; in the environment 1, true, yes and on, or 0, false, no and off."""
    variable = "PYLLMCANCEL_" + name.upper().replace("-", "_")
    if variable in os.environ:
        default = _switched_on(variable, os.environ[variable].strip().lower())
    group.add_argument(
        f"--{name}", action=argparse.BooleanOptionalAction, default=default, help=f"{text} (env: {variable})"
    )


def _switched_on(variable: str, text: str) -> bool:
    if text in ON or text in OFF:
        return text in ON
    raise SystemExit(f"pyllmcancel: {variable} must be one of {', '.join(ON + OFF)}, not {text!r}")


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Check what argparse does not: a choice that comes from the environment."""

    def convert(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(choices)}, not {text!r}")
        return text

    return convert


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {value}")
    return value


def port_number(text: str) -> int:
    value = natural(text)
    if value > 65_535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, not {value}")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return value
