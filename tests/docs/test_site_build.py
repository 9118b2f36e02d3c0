"""The documentation's site is built without a warning, and no link within it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.pages import ROOT

NEEDED = ("mkdocs", "material", "mkdocstrings")


class Page(HTMLParser):
    """A page's addresses, and the names that an address may have after its ``#``."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.names: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.addresses.append(value)
            if (name == "id" or (tag, name) == ("a", "name")) and value:
                self.names.add(value)


def broken(site: Path) -> list[str]:
    """Return the links of a site that lead to no file, or to no name in one. Links to other sites are not followed."""
    pages = {file: Page(file) for file in site.rglob("*.html")}
    found = []
    for file, page in pages.items():
        for address in page.addresses:
            parts = urlsplit(address)
            # The page for unknown addresses has absolute ones, for it is shown at any depth.
            if parts.scheme or parts.netloc or (file.name == "404.html" and address.startswith("/")):
                continue
            target = file if not parts.path else (file.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            names = pages[target].names if target in pages else {unquote(parts.fragment)}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in names):
                found.append(f"{file.relative_to(site)}: {address}")
    return found


@pytest.mark.long
@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="the extra [docs] is not installed")
def test_the_site_is_built_without_a_warning_and_without_a_broken_link(tmp_path: Path) -> None:
    site = tmp_path / "site"
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert broken(site) == []
    assert (site / "library" / "index.html").is_file()


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    site = tmp_path
    (site / "page").mkdir()
    (site / "page" / "index.html").write_text('<h1 id="one"></h1><a href="../"></a><a href="../nothing/"></a>')
    (site / "index.html").write_text('<a href="page/#one">x</a><a href="page/#two"></a><a href="https://x.org/"></a>')
    assert sorted(broken(site)) == ["index.html: page/#two", "page/index.html: ../nothing/"]
