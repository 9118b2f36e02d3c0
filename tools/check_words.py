"""Find English that has to be read twice: ``python tools/check_words.py``.

An opening such as "Of" or "What" begins a text that has no subject, and a sentence of over 35 words has more than one
idea. The pages below and the docstrings of the package must be free of both.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "native/README.md", "tools/demo_model/README.md"),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
OPENINGS = re.compile(r"(?:Of|What|Whether|See there|Elsewhere)\b")
MAX_WORDS = 35
KINDS = ("openings", "long sentences")

CODE = re.compile(r"```.*?```|^#.*?$|``.*?``|`[^`]*`|<[^>]+>|!?\[|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
LIST_OF_CODE = re.compile(r"(?:x,?\s*)+$")  # names, which nobody reads as a sentence
END = re.compile(r"(?<=[.:;!?])\s+|[├└│]|\s\|\s|\n\s*(?:[-|]|\d+\.)\s|\n\s*\n")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, and the cells and items of its tables and lists, without code and marks."""
    for sentence in END.split(CODE.sub("x", text).replace("**", "")):
        found = sentence.strip(" \n|#*->")
        if found:
            yield " ".join(found.split())


def faults(text: str) -> dict[str, list[str]]:
    """The openings that are not wanted, and the sentences that are too long."""
    every = list(sentences(text))
    return {
        "openings": [one for one in every if OPENINGS.match(one) and not one.endswith("?")],
        "long sentences": [one for one in every if len(one.split()) > MAX_WORDS and not LIST_OF_CODE.match(one)],
    }


def docstrings(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def of_docstrings(paths: Iterable[Path]) -> dict[str, list[str]]:
    """As `faults`; only a docstring's first sentence is looked at for its opening."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for text in docstrings(paths):
        found["openings"] += faults(next(sentences(text), ""))["openings"]
        found["long sentences"] += faults(text)["long sentences"]
    return found


def main() -> int:
    found = {page: faults((ROOT / page).read_text("utf-8")) for page in PAGES}
    found["docstrings"] = of_docstrings((ROOT / "pyllmcancel").rglob("*.py"))
    complaints = [
        f"{place}: {kind}: {one}\n" for place, kinds in found.items() for kind, every in kinds.items() for one in every
    ]
    sys.stdout.writelines(complaints)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
