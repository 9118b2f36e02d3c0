"""The blocks of code of the project's pages.

A block that no test runs has a comment right above it that says why: ``<!-- not run: needs a GPU -->``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PART = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>(?:(?!```)[^\n]*\n)*?)```$"
    r"|^#+ (?P<title>[^\n]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    page: str  # its path in the repository
    line: int  # where the block begins
    heading: str  # the one right above it
    language: str  # the word after the fence; empty for an output, or for what no program reads
    code: str
    reason: str | None  # why it is not run, if a comment says so

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, by its path in the repository."""
    text = (ROOT / page).read_text("utf-8")
    heading = ""
    for part in PART.finditer(text):
        if part["title"] is not None:
            heading = part["title"]
        else:
            line = text.count("\n", 0, part.start()) + 1
            yield Block(page, line, heading, part["language"], part["code"], part["reason"])
