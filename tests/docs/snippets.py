"""The blocks of code of README and docs/, and the way in which each is tested."""

import shlex
from collections.abc import Iterator
from enum import StrEnum

from tests.support.pages import ROOT, Block, blocks

PAGES = ["README.md", *sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md"))]
DATA = ("json", "toml", "vim", "yaml")
OUTPUT = ("", "text")
SHELL = ("bash", "sh")
OURS = "pyllmcancel"
# Commands that are looked at and not run: they install, or they start what goes on until it is ended.
INSTALLS = ("pip", "pytest", "python3", ".")
GO_ON = ("serve", "top", "models", "chat")


class Way(StrEnum):
    RUN = "run"
    CHECKED = "checked: its options, extras and files are known"
    PARSED = "parsed"
    OUTPUT = "output of a command"
    MARKED = "not run, for the reason above it"


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell's block, as lists of words. Redirections and here documents are not understood."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="();&|")
        words.whitespace_split = True
        command: list[str] = []
        for word in words:
            if set(word) <= set("();&|"):
                if command:
                    yield command
                command = []
            elif command or not is_assignment(word):
                command.append(word)
        if command:
            yield command


def is_assignment(word: str) -> bool:
    return word.partition("=")[0].isidentifier() and "=" in word


def program(command: list[str]) -> str:
    return command[0].rpartition("/")[2]


def is_only_checked(command: list[str]) -> bool:
    if program(command) == OURS:
        return command[1] in GO_ON
    return program(command) in INSTALLS


def way(block: Block) -> Way:
    """Return the way of a block.

    Raises
    ------
    ValueError
        No test knows the block's language.
    """
    if block.reason is not None:
        return Way.MARKED
    if block.language in SHELL:
        return Way.CHECKED if all(map(is_only_checked, commands(block))) else Way.RUN
    if block.language in ("python", "js"):
        return Way.RUN
    if block.language in DATA:
        return Way.PARSED
    if block.language in OUTPUT:
        return Way.OUTPUT
    raise ValueError(f"{block}: no test knows the language {block.language!r}")


ALL = [block for page in PAGES for block in blocks(page)]
