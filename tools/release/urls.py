"""The project's addresses in ``pyproject.toml``: those of the forge from which the checkout was cloned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REMOTE = re.compile(r"(?:(?:ssh|https)://)?(?:[^@/]+@)?(?P<host>[\w-]+(?:\.[\w-]+)+)[:/](?P<path>[\w.-]+(?:/[\w.-]+)+)")


def page_of(remote: str) -> str | None:
    """Return the page of a repository whose remote is `remote`; None for a folder of this machine."""
    found = REMOTE.fullmatch(remote.rstrip("/").removesuffix(".git"))
    return None if found is None else f"https://{found['host']}/{found['path']}"


def write(root: Path, remote: str) -> bool:
    """Write the addresses, unless there are any; returns whether the project has some now."""
    file = root / "pyproject.toml"
    text = file.read_text("utf-8")
    if "urls" in tomllib.loads(text)["project"]:
        return True
    page = page_of(remote)
    if page is None:
        return False
    pages = {"Source": page, "Changelog": f"{page}/blob/main/CHANGELOG.md", "Issues": f"{page}/issues"}
    table = "".join(f'{name} = "{address}"\n' for name, address in pages.items())
    file.write_text(text.replace("[project.scripts]\n", f"[project.urls]\n{table}\n[project.scripts]\n", 1), "utf-8")
    return True
