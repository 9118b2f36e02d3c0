"""Find English that has to be read twice: ``python tools/check_words.py``.

An opening such as "Of" or "What" begins a text that has no subject, and a sentence of over 35 words has more than one
idea. The pages below must be free of both. In docstrings of the package there are at most as many as LIMITS says, which
only falls.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/architecture.md", "docs/cancelling.md", "docs/limits.md", "docs/measured/typing.md")
OPENINGS = re.compile(r"(?:Of|What|Whether|See there|Elsewhere)\b")
MAX_WORDS = 35
LIMITS = {"openings": 0, "long sentences": 0}

CODE = re.compile(r"```.*?```|^#.*?$|``.*?``|`[^`]*`|<[^>]+>|!?\[|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
END = re.compile(r"(?<=[.:;!?])\s+|\s\|\s|\n\s*(?:[-|]|\d+\.)\s|\n\s*\n")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, and the cells and items of its tables and lists, without code and marks."""
    for sentence in END.split(CODE.sub("x", text)):
        found = sentence.strip(" \n|#*->")
        if found:
            yield " ".join(found.split())


def faults(text: str) -> dict[str, list[str]]:
    """The openings that are not wanted, and the sentences that are too long."""
    every = list(sentences(text))
    return {
        "openings": [one for one in every if OPENINGS.match(one) and not one.endswith("?")],
        "long sentences": [one for one in every if len(one.split()) > MAX_WORDS],
    }


def docstrings(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def of_docstrings(paths: Iterable[Path]) -> dict[str, list[str]]:
    """As `faults`; only a docstring's first sentence is looked at for its opening."""
    found: dict[str, list[str]] = {kind: [] for kind in LIMITS}
    for text in docstrings(paths):
        every = faults(text)
        found["openings"] += [one for one in every["openings"] if text.startswith(one.split()[0])][:1]
        found["long sentences"] += every["long sentences"]
    return found


def main() -> int:
    complaints = [
        f"{page}: {kind}: {one}"
        for page in PAGES
        for kind, every in faults((ROOT / page).read_text("utf-8")).items()
        for one in every
    ]
    for kind, every in of_docstrings((ROOT / "pyllmcancel").rglob("*.py")).items():
        if len(every) != LIMITS[kind]:
            complaints += [
                f"docstrings have {len(every)} {kind}, LIMITS says {LIMITS[kind]}: {one}" for one in every[:5]
            ]
    sys.stdout.writelines(f"{one}\n" for one in complaints)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
