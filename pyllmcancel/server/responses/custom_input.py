"""A custom tool's input, read from the arguments of the function that stands for the tool, while they are generated."""

from __future__ import annotations

import json
import re

OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# The parts of a JSON text that can be read by themselves: an escape is whole, and the first half of a pair waits for
# the second. No quantifier is possessive: Python 3.11.2, Debian 12's, then takes half of an escape.
READABLE = re.compile(
    r'(?:[^"\\]+|\\[^u]|\\u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}'
    r"|[dD][c-fC-F][0-9a-fA-F]{2}))*"
)


class CustomInput:
    """Takes fragments of ``{"input": "…"}``.

    Attributes
    ----------
    text
        The text that could be read so far.
    """

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._texts: list[str] = []
        self._unread = ""
        self._opened = False
        self._closed = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def feed(self, fragment: str) -> str:
        """Return the text that this fragment adds to what can be read."""
        self._fragments.append(fragment)
        if self._closed:
            return ""
        self._unread += fragment
        if not self._opened:
            opening = OPENING.match(self._unread)
            if opening is None:
                return ""
            self._opened = True
            self._unread = self._unread[opening.end() :]
        found = READABLE.match(self._unread)
        assert found is not None  # the match may be empty
        self._unread = self._unread[found.end() :]
        self._closed = self._unread.startswith('"')
        text = read(found[0])
        self._texts.append(text)
        return text

    def finish(self) -> str:
        """Return the text that is left.

        If the arguments are not such an object, the text is all of them, as the model wrote them.
        """
        before = self.text
        whole = input_in("".join(self._fragments))
        rest = whole.removeprefix(before) if whole.startswith(before) else ""
        self._texts.append(rest)
        return rest


def read(escaped: str) -> str:
    try:
        text: str = json.loads(f'"{escaped}"', strict=False)
    except ValueError:  # an unknown escape
        return escaped
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def input_in(arguments: str) -> str:
    try:
        found = json.loads(arguments, strict=False)
    except ValueError:
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
