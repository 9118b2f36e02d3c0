"""The commit and the tag of a release: made in a clone, and taken over by the checkout in the end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from . import changelog, urls, version
from .commands import ReleaseError, run, say


def check(root: Path, new: str) -> bool:
    """Check all that can be checked before anything is built; returns whether the checkout is at the version's tag."""
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=root):
        raise ReleaseError("there are changes that are not committed")
    text = (root / "CHANGELOG.md").read_text("utf-8")
    if f"v{new}" in run("git", "tag", "--points-at", "HEAD", cwd=root).split():
        if version.current(root) != new or changelog.sections(text)[0].version != new:
            raise ReleaseError(f"pyproject.toml or CHANGELOG.md is not that of {new}, whose tag this is")
        return True
    version.check(new, version.current(root), run("git", "tag", cwd=root).split())
    changelog.check(text, new)
    return False


def commit_and_tag(root: Path, clone: Path, new: str) -> None:
    """Write the version, the addresses and the date in the clone of `root`, commit and tag."""
    version.write(clone, new)
    remotes = run("git", "config", "--get-regexp", r"^remote\.origin\.url$", cwd=root, may_fail=True).split()
    if not urls.write(clone, remotes[-1] if remotes else ""):
        say("pyproject.toml has no project.urls, and this checkout no origin to take them from")
    file = clone / "CHANGELOG.md"
    file.write_text(changelog.dated(file.read_text("utf-8"), new, datetime.now(UTC).date()), "utf-8")
    for name in ("user.name", "user.email"):
        run("git", "config", name, run("git", "config", name, cwd=root).strip(), cwd=clone)
    run("git", "commit", "--quiet", "--all", "-m", f"Release {new}", cwd=clone)
    run("git", "tag", "--annotate", f"v{new}", "-m", f"pyllmcancel {new}", cwd=clone)


def date_of(clone: Path) -> datetime:
    """The commit's date, which all files of the release get: built again they are the same."""
    return datetime.fromtimestamp(int(run("git", "log", "-1", "--format=%ct", cwd=clone)), UTC)


def take_over(root: Path, clone: Path, new: str) -> None:
    """Give the checkout the commit and the tag that were made in the clone."""
    run("git", "fetch", "--quiet", clone, f"refs/tags/v{new}:refs/tags/v{new}", cwd=root)
    run("git", "merge", "--quiet", "--ff-only", f"v{new}", cwd=root)
    say(f"committed and tagged v{new}; `git push --follow-tags` publishes it")
