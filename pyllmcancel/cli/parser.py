"""An argument parser whose errors are short and suggest what may have been meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

# Errors that do not say what else to type; argparse's words.
HELPLESS = ("unrecognized arguments", "the following arguments are required")
SUGGESTION = "; did you mean "
CHOICE = re.compile(r"invalid choice: '([^']*)'")


class Parser(argparse.ArgumentParser):
    """The parser of the command and of its subcommands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class, except that a command's own parser refuses unknown options, since it knows the names.

        A name may be written with underscores, as llama.cpp's options may.
        """
        given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args([dashed(one) for one in given], namespace)
        if not hasattr(found, "given"):
            found.given = given  # by the command's own parser, which comes first
            found.parser = self
        if unknown and not any(isinstance(one, argparse._SubParsersAction) and one.required for one in self._actions):
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggested(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error in one line, without the usage: a server's takes pages."""
        wrong = CHOICE.search(message)
        if wrong is not None:
            message = f"{message}{nearest(wrong[1], self._choices())}"
        if message.startswith(HELPLESS) and SUGGESTION not in message:
            message = f"{message} (see {self.prog} --help)"
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _suggested(self, unknown: Sequence[str]) -> str:
        options = [option.partition("=")[0] for option in unknown if option.startswith("-")]
        known = self._option_string_actions
        shown = [name for name, action in known.items() if action.help != argparse.SUPPRESS]
        return "".join(nearest(option, shown) or nearest(option, known) for option in options)

    def _choices(self) -> list[str]:
        return [str(choice) for action in self._actions for choice in action.choices or ()]


def dashed(given: str) -> str:
    """Return the given argument, with an option's name as the parser knows it."""
    name, *value = given.split("=", 1)
    return "=".join((name.replace("_", "-"), *value)) if given.startswith("--") else given


def nearest(text: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` for the nearest known word, or nothing if none is near."""
    found = get_close_matches(text, list(known), n=1)
    return f"{SUGGESTION}{found[0]}?" if found else ""
