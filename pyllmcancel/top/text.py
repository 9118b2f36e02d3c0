"""Text for a terminal: names that others chose, made harmless, and numbers; and JSON from the network."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

LONGEST = 400  # characters of a name; a longer one could only be cut
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"})
INSTEAD = "\N{REPLACEMENT CHARACTER}"


def plain(text: object) -> str:
    """Return text from the network without anything that a terminal obeys: escapes, line feeds, changes of direction.

    Marks that have no cell of their own are replaced, too: any number of them can be piled upon one.
    """
    composed = unicodedata.normalize("NFC", str(text)[:LONGEST])
    return "".join(INSTEAD if unicodedata.category(character) in UNSEEN else character for character in composed)


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def duration(seconds: float) -> str:
    """Return a duration: ``0.4 s``, ``12 s``, ``3:05``, ``2 h 10``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02}"


def read_json(text: str | bytes) -> Any:
    """Return the JSON; None if the bytes are not JSON, or are nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
