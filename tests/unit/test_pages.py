"""The project's pages: each is current and complete, its links lead somewhere, and code of others is as it was."""

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import pyllmcancel
from pyllmcancel import Delta, Ending, EngineConfig, GenerationParams, Placement, SamplingParams, Usage
from tools import describe_commands, describe_http, describe_options
from tools.check_words import PAGES, ROOT
from tools.site_hooks import slug, without_outer_links


@pytest.mark.parametrize("tool", [describe_commands, describe_http, describe_options])
def test_a_page_that_a_tool_writes_is_current(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLMCANCEL_PORT", "1234")  # the environment has no effect on it
    assert tool.PAGE.read_text("utf-8") == tool.page(), f"run: python {tool.__file__}"


LIBRARY = (ROOT / "docs" / "library.md").read_text("utf-8")


def test_the_page_of_the_library_has_every_export_once() -> None:
    shown = re.findall(r"^::: (\S+)$", LIBRARY, re.MULTILINE)
    exported = [f"pyllmcancel.{name}" for name in pyllmcancel.__all__ if name not in vars(pyllmcancel.errors)]
    assert sorted(shown) == sorted(
        [*exported, "pyllmcancel.errors", "pyllmcancel.placement.Device", "pyllmcancel.requests.token_stream.Stream"]
    )


@pytest.mark.parametrize("kind", [Delta, Ending, EngineConfig, GenerationParams, Placement, SamplingParams, Usage])
def test_a_docstring_has_every_field(kind: type) -> None:
    doc = kind.__doc__ or ""
    named = {name for line in re.findall(r"^    ([a-z_, ]+)$", doc, re.MULTILINE) for name in line.split(", ")}
    assert {field.name for field in fields(kind)} <= named


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


DOCS = ROOT / "docs"
LIMITS = DOCS / "limits.md"


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
    assert without_outer_links(text, LIMITS, None) == "[a](gpu.md#build) `b` c [d](https://x.org/) `[e](nothing)`"
    assert without_outer_links(text, LIMITS, "https://x.org/r") == (
        "[a](gpu.md#build) [`b`](https://x.org/r/blob/HEAD/SECURITY.md#web-pages) "
        "[c](https://x.org/r/blob/HEAD/docs/measured) [d](https://x.org/) `[e](nothing)`"
    )


def test_headings_have_the_anchors_of_the_links(tmp_path: Path) -> None:
    title = "One wheel, `any` CPU - and more"
    page = tmp_path / "page.md"
    page.write_text(f"# {title}\n", "utf-8")
    assert slug(title.replace("`", ""), "-") in anchors(page)


VENDOR = ROOT / "pyllmcancel" / "page" / "vendor"
VENDORED: list[dict[str, Any]] = tomllib.loads((VENDOR / "VENDORED.toml").read_text("utf-8"))["package"]
FILES = {file["to"]: file["sha256"] for package in VENDORED for file in package["files"]}


@pytest.mark.parametrize("path", FILES)
def test_a_vendored_file_has_its_sha256(path: str) -> None:
    assert hashlib.sha256((ROOT / path).read_bytes()).hexdigest() == FILES[path]


def test_no_file_is_vendored_that_is_not_listed() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert here - {"pyllmcancel/page/vendor/VENDORED.toml"} == {
        path for path in FILES if not path.startswith("licenses/")
    }


@pytest.mark.parametrize("package", VENDORED, ids=lambda package: str(package["name"]))
def test_a_package_comes_with_its_licence(package: dict[str, Any]) -> None:
    assert package["licence"]
    assert any(Path(file["to"]).parent == Path("licenses") for file in package["files"])


def test_no_two_packages_write_one_file() -> None:
    assert len(FILES) == sum(len(package["files"]) for package in VENDORED)
