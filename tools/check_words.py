"""Find English that has to be read twice: ``python tools/check_words.py``.

An opening such as "Of" or "What" begins a text that has no subject, and a sentence of over 35 words has more than one
idea. The pages below, and the docstrings and comments of the code, must be free of both. The code must also be free of
words that stand for the field's own: see the list in CONTRIBUTING.md. The texts of ``--help``, of errors and of the log
are among the strings of the code.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "native/README.md", "tools/demo_model/README.md"),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
DOCUMENTED = ("pyllmcancel", "bench", "tools", "tests")  # folders whose docstrings are checked
COMMENTED = ("pyllmcancel", "native", "bench", "tools")  # folders whose comments, strings and words are checked
SCRIPTS = (".py", ".pyi", ".pyx", ".pxd", ".pxi")
OTHERS = (".cpp", ".hpp", ".js")

OPENINGS = re.compile(r"(?:Of|What|Whether|See there|Elsewhere)\b")
MAX_WORDS = 35
# Each of them has a plain word: "reported", "ignored", "at most N", "limit of", "connects".
ODD_WORDS = re.compile(
    r"(?i:\b(?:is|are|was|were|be|been|being|not) told\b(?! apart)|\bpass(?:ed|es|ing) over\b|\bso many\b)"
    r"|\bknock(?:s|ed|ing)?\b|^most [a-z]|^Most \w+ (?:of (?:one|a|all)|that|in (?:one|a))\b"
)
KINDS = ("openings", "long sentences", "odd words")

CODE = re.compile(
    r"```.*?```|^#.*?$|^ +(?:python|pytest) .*?$|``.*?``|`[^`]*`|<[^>]+>|!?\[|\]\([^)]*\)", re.DOTALL | re.MULTILINE
)
LIST_OF_CODE = re.compile(r"(?:x,?\s*)+$")  # names, which nobody reads as a sentence
END = re.compile(r"(?<=[.:;!?])\s+|[├└│]|\s\|\s|\n\s*(?:[-|]|\d+\.)\s|\n\s*\n|\n *-{3,}\n")

Found = dict[str, list[str]]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, and the cells and items of its tables and lists, without code and marks."""
    for sentence in END.split(CODE.sub("x", text).replace("**", "")):
        found = sentence.strip(" \n|#*->")
        if found:
            yield " ".join(found.split())


def faults(text: str) -> Found:
    """The openings that are not wanted, and the sentences that are too long."""
    every = list(sentences(text))
    return {
        "openings": [one for one in every if OPENINGS.match(one) and not one.endswith("?")],
        "long sentences": [one for one in every if len(one.split()) > MAX_WORDS and not LIST_OF_CODE.match(one)],
        "odd words": [],
    }


def faults_of_code(text: str) -> Found:
    """As `faults`; only the first sentence is looked at for its opening, and odd words are found, too."""
    return {
        "openings": faults(next(sentences(text), ""))["openings"],
        "long sentences": faults(text)["long sentences"],
        "odd words": [one for one in sentences(text) if ODD_WORDS.search(one)],
    }


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def strings(source: str) -> Iterator[str]:
    """The strings of several words that are not docstrings: help, errors, lines of the log."""
    tree = ast.parse(source)
    plain = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in plain and len(str(node.value).split()) > 2:
            yield str(node.value)


def comments_of_script(source: str) -> Iterator[tuple[int, bool, str]]:
    """The line, whether it has nothing else, and the text of each comment."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            yield line, not lines[line - 1][:column].strip(), token.string.lstrip("#: ")


def comments_of_others(source: str) -> Iterator[tuple[int, bool, str]]:
    """As `comments_of_script`, for comments that begin with two slashes."""
    for line, text in enumerate(source.splitlines(), 1):
        code, slashes, comment = text.partition("//")
        if slashes and not code.rstrip().endswith((":", '"', "'", "`")):
            yield line, not code.strip(), comment.strip("/ ")


def comments(lines: Iterable[tuple[int, bool, str]]) -> Iterator[str]:
    """The texts of comments; neighbouring lines that have nothing else are one text."""
    text, last = "", 0
    for line, alone, comment in lines:
        if text and not (alone and line == last + 1):
            yield text
            text = ""
        text = f"{text}\n{comment}" if text else comment
        last = line if alone else 0
    yield text


def files(folders: Iterable[str], endings: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in endings and not {"vendor", "node_modules", "__pycache__"} & set(path.parts):
                yield path


def collected(texts: Iterable[str], wanted: tuple[str, ...] = KINDS) -> Found:
    found: Found = {kind: [] for kind in KINDS}
    for text in texts:
        for kind, every in faults_of_code(text).items():
            found[kind] += every if kind in wanted else []
    return found


def faults_of_file(path: Path) -> Found:
    """The faults of a file of code, by the folder that it is in."""
    source, folder = path.read_text("utf-8"), path.relative_to(ROOT).parts[0]
    found: Found = {kind: [] for kind in KINDS}
    if path.suffix in (".py", ".pyi"):
        add(found, collected(docstrings(source), KINDS if folder in COMMENTED else KINDS[:2]))
    if folder in COMMENTED:
        if path.suffix in (".py", ".pyi"):
            add(found, collected(strings(source), ("odd words",)))
        lines = comments_of_script(source) if path.suffix in (".py", ".pyi") else comments_of_others(source)
        add(found, collected(comments(lines)))
    return found


def add(found: Found, more: Found) -> None:
    for kind, every in more.items():
        found[kind] += every


def main() -> int:
    found = {page: faults((ROOT / page).read_text("utf-8")) for page in PAGES}
    for path in {*files(DOCUMENTED, SCRIPTS[:2]), *files(COMMENTED, OTHERS)}:
        found[str(path.relative_to(ROOT))] = faults_of_file(path)
    complaints = sorted(
        f"{place}: {kind}: {one}\n" for place, kinds in found.items() for kind, every in kinds.items() for one in every
    )
    sys.stdout.writelines(complaints)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
