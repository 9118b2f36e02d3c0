"""Options that can be given on the command line or in the environment."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

UNIX = "unix"
ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")
MAX_WHOLE = 2**32 - 1
MAX_COUNT = MAX_SECONDS = 2**31 - 1


def add_option(
    group: argparse._ArgumentGroup,
    name: str,
    convert: Callable[[str], Any],
    default: Any,
    text: str,
    *,
    also: tuple[str, ...] = (),
    metavar: str | None = None,
    choices: tuple[str, ...] | None = None,
    bare: str | None = None,
    scope: str = "",
    action: str | type[argparse.Action] = "store",
) -> None:
    """Add ``--name``, whose default may come from ``PYLLMCANCEL_NAME``; a bad value there is an error as well.

    Parameters
    ----------
    also
        Other spellings, short ones among them.
    bare
        The meaning of the option without a value; None: the option needs a value.
    scope
        Prefix of the name in the environment, where two commands have an option of one name.
    action
        What is done with the value, if it is not only kept.
    """
    # argparse converts a default that is a string by `type`, as it does a given value.
    group.add_argument(
        f"--{name}",
        *also,
        type=convert if choices is None else one_of(choices),
        default=os.environ.get(variable_of(scope + name), default),
        metavar=metavar or ("|".join(choices) if choices else name.upper() if convert is str else "N"),
        choices=choices,
        nargs=None if bare is None else "?",
        const=bare,
        help=explained(scope + name, text, default),
        action=action,
    )


def add_switch(
    group: argparse._ArgumentGroup,
    name: str,
    default: bool | None,
    text: str,
    *,
    also: tuple[str, ...] = (),
    scope: str = "",
) -> None:
    """Add ``--name`` and ``--no-name``; in the environment 1, true, yes and on, or 0, false, no and off.

    A `default` of None means that the default depends on other options.
    """
    variable = variable_of(scope + name)
    if variable in os.environ:
        default = _switched_on(variable, os.environ[variable].strip().lower())
    group.add_argument(
        f"--{name}",
        *also,
        action=argparse.BooleanOptionalAction,
        default=default,
        help=explained(scope + name, text, None),
    )


def add_list(
    group: argparse._ArgumentGroup,
    name: str,
    convert: Callable[[str], Any],
    text: str,
    *,
    metavar: str,
    also: tuple[str, ...] = (),
) -> None:
    """Add ``--name``, which may be repeated, or have several values separated by commas; without it the environment
    counts.
    """
    group.add_argument(
        f"--{name}",
        *also,
        type=lambda given: tuple(convert(part.strip()) for part in given.split(",") if part.strip()),
        default=os.environ.get(variable_of(name), ""),
        action=Several,
        metavar=metavar,
        help=explained(name, text, None),
    )


class Several(argparse.Action):
    """Joins the tuples of all occurrences of an option."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        # Still the text of the default? Then this is the first occurrence, and it replaces the default.
        setattr(namespace, self.dest, (*(before if isinstance(before, tuple) else ()), *(values or ())))


def variable_of(name: str) -> str:
    return "PYLLMCANCEL_" + name.upper().replace("-", "_")


def explained(name: str, text: str, default: Any) -> str:
    shown = "" if default is None or default == "" else f" [{default}]"
    return f"{text}{shown} (env: {variable_of(name)})".replace("%", "%%")


def _switched_on(variable: str, text: str) -> bool:
    if text in ON or text in OFF:
        return text in ON
    raise SystemExit(f"pyllmcancel: {variable} must be one of {', '.join(ON + OFF)}, not {text!r}")


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Check a choice that comes from the environment, which argparse does not check."""

    def convert(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(choices)}, not {text!r}")
        return text

    return convert


def whole(text: str, most: int = MAX_WHOLE) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
    if not -most <= value <= most:
        raise argparse.ArgumentTypeError(f"must be at most {most}, not {text}")
    return value


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def positive_int(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return limited(value)


def natural(text: str) -> int:
    value = whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {value}")
    return limited(value)


def limited(value: int) -> int:
    if value > MAX_COUNT:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_COUNT}, not {value}")
    return value


def natural_or_none(text: str) -> int | None:
    """A number; -1 means no limit, as in llama-server."""
    return None if text.strip() == "-1" else natural(text)


def seed(text: str) -> int | None:
    """A seed; -1 means that each request draws one, as in llama-server."""
    value = whole(text, 2**64 - 1)
    if value < -1:
        raise argparse.ArgumentTypeError(f"must be at least -1, not {value}")
    return None if value == -1 else value


def natural_or_auto(text: str) -> int:
    """A number; 0 or llama-server's -1 means that we choose."""
    return 0 if text.strip() == "-1" else natural(text)


def positive_or_auto(text: str) -> int | None:
    """A number of at least 1; llama-server's -1 means that it is not set."""
    return None if text.strip() == "-1" else positive_int(text)


def flash_attention(text: str) -> str:
    """``on``, ``off`` or ``auto``, or another word of llama-server's for them."""
    words = {"on": "on", "enabled": "on", "true": "on", "1": "on", "auto": "auto", "-1": "auto"}
    words |= {"off": "off", "disabled": "off", "false": "off", "0": "off"}
    if text not in words:
        raise argparse.ArgumentTypeError(f"must be on, off or auto, not {text!r}")
    return words[text]


def port_number(text: str) -> int:
    value = natural(text)
    if value > 65_535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, not {value}")
    return value


def seconds(text: str) -> float:
    value = number(text)
    if not 0 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 to {MAX_SECONDS}, not {text}")
    return value


def seconds_or_off(text: str) -> float:
    """Seconds; 0, or llama-server's -1, means never."""
    return 0.0 if text.strip() == "-1" else seconds(text)


def client_seconds(text: str) -> float:
    """Seconds of a client's silence; 0: without limit. The kernel counts whole seconds, in 16 bits."""
    value = seconds_or_off(text)
    if value and not 2 <= value < 32_768:
        raise argparse.ArgumentTypeError(f"must be 0, or from 2 to 32767 seconds, not {text}")
    return value


def checked_by(convert: Callable[[str], str]) -> Callable[[str], str]:
    """Return a converter for an option that reports the ValueError of `convert` as the option's error."""

    def checked(text: str) -> str:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def address_or_network(text: str) -> str:
    if text == UNIX:
        return text
    try:
        ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be addresses or networks: {error}") from None
    return text


def scaled_file(text: str) -> tuple[Path, float]:
    """Convert ``FILE:SCALE``."""
    path, separator, scale = text.rpartition(":")
    if not separator or not path:
        raise argparse.ArgumentTypeError(f"must be FILE:SCALE, not {text!r}")
    return Path(path), number(scale)


def unscaled_file(text: str) -> tuple[Path, float]:
    return Path(text), 1.0
