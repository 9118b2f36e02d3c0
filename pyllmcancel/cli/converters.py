"""Converters of options' values, whose errors are short: argparse puts the option's name before them."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from pyllmcancel.drafting.sources import HEADS, MODEL, NGRAM, SOURCES

UNIX = "unix"
ON = ("1", "true", "yes", "on", "enabled")
OFF = ("0", "false", "no", "off", "disabled")
MAX_WHOLE = 2**32 - 1
MAX_COUNT = MAX_SECONDS = 2**31 - 1
NONE = "none"
# llama-server's kinds of look-ups in the prompt and the answer; here there is one.
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
BY_A_MODEL = "draft-simple"  # llama-server's name for a draft model
BY_HEADS = "draft-mtp"  # and for the model's own heads
BY_OTHERS = "draft-"  # its other kinds begin so
NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,128}")


def whole_number(least: int, most: int = MAX_COUNT) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if value < least:
            bound = "not be negative" if least == 0 else f"be at least {least}"
            raise ArgumentTypeError(f"must {bound}, not {value}")
        if value > most:
            raise ArgumentTypeError(f"must be at most {most}, not {value}")
        return value

    return convert


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be a number, not {text!r}") from None


def number_to(most: int, what: str = "") -> Callable[[str], float]:
    """Return a converter of numbers from 0 to `most`, which are called `what` in the error."""

    def convert(text: str) -> float:
        value = number(text)
        if not 0 <= value <= most:
            raise ArgumentTypeError(f"must be {what}from 0 to {most}, not {text}")
        return value

    return convert


def or_minus_one(convert: Callable[[str], Any], meaning: Any) -> Callable[[str], Any]:
    """Return a converter that also takes llama-server's -1, which has this meaning."""
    return lambda text: meaning if text.strip() == "-1" else convert(text)


def known_word(meanings: dict[str, Any], shown: str) -> Callable[[str], Any]:
    """Return a converter of the words that llama-server has for the meanings."""

    def convert(text: str) -> Any:
        if text not in meanings:
            raise ArgumentTypeError(f"must be {shown}, not {text!r}")
        return meanings[text]

    return convert


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Check a choice that comes from the environment, which argparse does not check."""
    return known_word({choice: choice for choice in choices}, f"one of {', '.join(choices)}")


whole = whole_number(-MAX_WHOLE, MAX_WHOLE)
positive_int = whole_number(1)
natural = whole_number(0)
port_number = whole_number(0, 65_535)
natural_or_none = or_minus_one(natural, None)
natural_or_auto = or_minus_one(natural, 0)
positive_or_auto = or_minus_one(positive_int, None)
seed = or_minus_one(whole_number(-1, 2**64 - 1), None)
seconds = number_to(MAX_SECONDS, "a number of seconds ")
seconds_or_off = or_minus_one(seconds, 0.0)
gibibytes = number_to(1 << 20, "a number ")
probability = number_to(1)
percent = number_to(100)

on_or_off = known_word(dict.fromkeys(ON, True) | dict.fromkeys(OFF, False), "on or off")
_FLASH = dict.fromkeys(ON, "on") | dict.fromkeys(OFF, "off") | dict.fromkeys(("auto", "-1"), "auto")
flash_attention = known_word(_FLASH, "on, off or auto")


def client_seconds(text: str) -> float:
    """Seconds of a client's silence; 0: without limit. The kernel counts whole seconds, in 16 bits."""
    value: float = seconds_or_off(text)
    if value and not 2 <= value < 32_768:
        raise ArgumentTypeError(f"must be 0, or from 2 to 32767 seconds, not {text}")
    return value


def delay(text: str) -> tuple[float, float]:
    """``S``, or the range ``S..S``."""
    first, _, last = text.partition("..")
    shortest, longest = seconds(first), seconds(last or first)
    if longest < shortest:
        raise ArgumentTypeError(f"the range ends before it begins: {text}")
    return shortest, longest


def checked_by(convert: Callable[[str], str]) -> Callable[[str], str]:
    """Return a converter that reports the ValueError of `convert` as the option's error."""

    def checked(text: str) -> str:
        try:
            return convert(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return checked


def address_or_network(text: str) -> str:
    try:
        if text != UNIX:
            ip_network(text)
    except ValueError as error:
        raise ArgumentTypeError(f"must be addresses or networks: {error}") from None
    return text


def replica_name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ArgumentTypeError(f"must match {NAME.pattern}, not {text!r}")
    return text


def scaled_file(text: str) -> tuple[Path, float]:
    """Convert ``FILE:SCALE``."""
    path, separator, scale = text.rpartition(":")
    if not separator or not path:
        raise ArgumentTypeError(f"must be FILE:SCALE, not {text!r}")
    return Path(path), number(scale)


def layers(text: str) -> int | Literal["auto", "all"]:
    """Convert a number of layers, or llama-server's words for all of them and for as many as fit."""
    match text.strip():
        case "auto" | "-1":
            return "auto"
        case "all" | "-2":
            return "all"
        case count if count.lstrip("-").isdecimal():
            return natural(count)
        case other:
            raise ArgumentTypeError(f"must be a number of layers, all or auto, not {other!r}")


def device_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if names == ("none",):
        return ()
    if not all(names) or "none" in names:
        raise ArgumentTypeError(f"must be names separated by commas, or none, not {text!r}")
    return names


def shares(text: str) -> tuple[float, ...]:
    """Convert numbers separated by commas or, as llama-server also allows, by slashes."""
    return tuple(map(number, re.split("[,/]", text))) if text else ()


def margins(text: str) -> tuple[int, ...]:
    return tuple(map(natural, re.split("[,/]", text)))


def override(text: str) -> tuple[str, str]:
    pattern, separator, buffer_type = text.partition("=")
    if not separator or not pattern or not buffer_type:
        raise ArgumentTypeError(f"must be PATTERN=TYPE, not {text!r}")
    return pattern, buffer_type


def draft_sources(text: str) -> tuple[str, ...]:
    """Return the sources, the likeliest first; with ``none`` there are none, as in llama-server."""
    names = [name.strip() for name in text.split(",")]
    known = (NONE, *SOURCES, *LOOKUPS, BY_A_MODEL, BY_HEADS)
    for name in names:
        if name not in known and name.startswith(BY_OTHERS):
            raise ArgumentTypeError(
                f"{name} is not supported: such a model reads the hidden states of several layers; drafts come from"
                f" texts or, as {BY_A_MODEL}, from a smaller model or, as {BY_HEADS}, from the model's own heads"
            )
        if name not in known:
            raise ArgumentTypeError(f"must be some of {', '.join(known)}, not {name!r}")
    theirs = dict.fromkeys(LOOKUPS, NGRAM) | {BY_A_MODEL: MODEL, BY_HEADS: HEADS}
    wanted = {theirs.get(name, name) for name in names}
    return () if NONE in wanted else tuple(source for source in SOURCES if source in wanted)
