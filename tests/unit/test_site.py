"""The documentation's site has every page of docs/, and no link that leads out of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.unit.test_page_links import anchors
from tools.check_words import ROOT
from tools.site_hooks import slug, without_outer_links

DOCS = ROOT / "docs"
PAGE = DOCS / "limits.md"


def pages(nav: Any) -> Iterator[str]:
    """The pages that a part of the nav names, with those of its parts."""
    match nav:
        case str():
            yield nav
        case dict():
            for part in nav.values():
                yield from pages(part)
        case list():
            for part in nav:
                yield from pages(part)


def test_every_page_is_in_the_nav_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    assert sorted(pages(nav)) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_a_link_out_of_the_pages_becomes_text_or_a_link_to_the_repository() -> None:
    text = "[a](gpu.md#build) [`b`](../SECURITY.md#web-pages) [c](measured) [d](https://x.org/) `[e](nothing)`"
    assert without_outer_links(text, PAGE, None) == "[a](gpu.md#build) `b` c [d](https://x.org/) `[e](nothing)`"
    assert without_outer_links(text, PAGE, "https://x.org/r") == (
        "[a](gpu.md#build) [`b`](https://x.org/r/blob/HEAD/SECURITY.md#web-pages) "
        "[c](https://x.org/r/blob/HEAD/docs/measured) [d](https://x.org/) `[e](nothing)`"
    )


def test_headings_have_the_anchors_of_the_links(tmp_path: Path) -> None:
    title = "One wheel, `any` CPU - and more"
    page = tmp_path / "page.md"
    page.write_text(f"# {title}\n", "utf-8")
    assert slug(title.replace("`", ""), "-") in anchors(page)
