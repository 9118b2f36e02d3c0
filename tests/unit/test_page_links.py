"""Links between the project's pages lead to files and headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.check_words import PAGES, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"")


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)


def links(text: str) -> Iterator[tuple[str, str]]:
    for found in LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        path, _, anchor = (found[1] or found[2]).partition("#")
        if not re.match(r"\w+:", path):
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def broken(page: Path, text: str) -> list[str]:
    found = []
    for path, anchor in links(text):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    assert broken(ROOT / page, without_code(ROOT / page)) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](docs/nothing.md) [b](docs/gpu.md#nothing) [c](docs/gpu.md#build) [d](#nothing) <img src='x'> `[e](x)`"
    assert broken(ROOT / "README.md", text) == ["docs/nothing.md#", "docs/gpu.md#nothing", "#nothing"]
