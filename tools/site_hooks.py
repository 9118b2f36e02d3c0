"""Hooks of the documentation's site: MkDocs calls them by name, as ``mkdocs.yml`` says.

The project's addresses are in ``pyproject.toml``, under ``[project.urls]``: ``Source`` is the repository's page, and
``Documentation`` the site's. The pages are written for a checkout: their links to files outside of ``docs/`` lead to
the repository, and are plain text if its page is not known.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def slug(title: str, separator: str) -> str:
    """Give a heading the anchor that GitHub gives it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def project_url(name: str) -> str | None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    address: str | None = project.get("urls", {}).get(name)
    return address


def without_outer_links(markdown: str, page: Path, address: str | None) -> str:
    """Rewrite the links of a page, which lies in ``docs/``, that lead to no page or file in there."""

    def rewritten(found: re.Match[str]) -> str:
        target = (page.parent / found["path"]).resolve()
        if not target.exists() or (target.is_relative_to(ROOT / "docs") and target.is_file()):
            return found[0]
        if address is None:
            return found["text"]
        path = target.relative_to(ROOT).as_posix()
        return f"[{found['text']}]({address}/blob/HEAD/{path}{found['anchor'] or ''})"

    return LINK.sub(rewritten, markdown)


def on_config(config: Any) -> Any:
    config.repo_url = project_url("Source")
    config.site_url = project_url("Documentation")
    config.mdx_configs["toc"] = {"slugify": slug, "permalink": True}
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return without_outer_links(markdown, Path(page.file.abs_src_path), project_url("Source"))
