"""Make a release: ``python -m tools.release VERSION``, in the checkout's root. Nothing is published.

In a clone of this checkout's last commit: writes the version and the changelog's date, commits and tags; builds the
sdist, and from it, with no index in reach, one wheel for every x86-64 Linux; has both checked (twine, auditwheel,
abi3audit); installs the wheel into empty environments of the oldest and the newest Python on the PATH, and serves with
it. Then ``dist/VERSION`` has the sdist, the wheel, a bill of materials, the notes and the checksums.

The checkout itself is changed only with ``--tag``: then it gets the commit and the tag. Pushing the tag publishes, by
``.github/workflows/release.yml``, which calls this at the tag. Needs ``tools/release/requirements.txt``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import artefacts, changelog, checks, checksums, sbom, urls, version
from .commands import ReleaseError, run, say, timed

ROOT = Path(__file__).resolve().parents[2]


def check_repository(new: str) -> bool:
    """Check all that can be checked before anything is built; returns whether the checkout is at the version's tag."""
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT):
        raise ReleaseError("there are changes that are not committed")
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if f"v{new}" in run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split():
        if version.current(ROOT) != new or changelog.sections(text)[0].version != new:
            raise ReleaseError(f"pyproject.toml or CHANGELOG.md is not that of {new}, whose tag this is")
        return True
    version.check(new, version.current(ROOT), run("git", "tag", cwd=ROOT).split())
    changelog.check(text, new)
    return False


def release_commit(clone: Path, new: str) -> None:
    """Write version and date in the clone, commit and tag."""
    version.write(clone, new)
    remotes = run("git", "config", "--get-regexp", r"^remote\.origin\.url$", cwd=ROOT, may_fail=True).split()
    if not urls.write(clone, remotes[-1] if remotes else ""):
        say("pyproject.toml has no project.urls, and this checkout no origin to take them from")
    file = clone / "CHANGELOG.md"
    file.write_text(changelog.dated(file.read_text("utf-8"), new, datetime.now(UTC).date()), "utf-8")
    for name in ("user.name", "user.email"):
        run("git", "config", name, run("git", "config", name, cwd=ROOT).strip(), cwd=clone)
    run("git", "commit", "--quiet", "--all", "-m", f"Release {new}", cwd=clone)
    run("git", "tag", "--annotate", f"v{new}", "-m", f"pyllmcancel {new}", cwd=clone)


def date_of(clone: Path) -> datetime:
    """The commit's date, which all files of the release get: built again they are the same."""
    return datetime.fromtimestamp(int(run("git", "log", "-1", "--format=%ct", cwd=clone)), UTC)


def build(clone: Path, scratch: Path, out: Path, when: datetime) -> Path:
    """Make sdist and wheel, and have them checked; returns the wheel."""
    epoch = {"SOURCE_DATE_EPOCH": str(int(when.timestamp()))}
    with timed("sdist"):
        sdist = artefacts.build_sdist(clone, out, epoch)
    with timed("wheel, from the sdist with no index"):
        made = artefacts.build_wheel(sdist, scratch, epoch)
    tagged = scratch / "tagged"
    tagged.mkdir()
    wheel = Path(shutil.copy(artefacts.give_platform_tag(made, tagged), out))
    for artefact in (sdist, wheel):
        say(f"{artefact.name}: {artefact.stat().st_size / 1e6:.1f} MB")
    with timed("twine, auditwheel, abi3audit"):
        checks.check_metadata(sdist, wheel)
        checks.platform_tag(wheel)
        checks.check_limited_api(wheel)
    return wheel


def try_everywhere(pythons: list[str], wheel: Path) -> dict[str, Any]:
    """Install and use the wheel with each Python; returns the report of the last one."""
    report: dict[str, Any] = {}
    for python in pythons:
        report = checks.try_installed(python, wheel)
        say(f"Python {report['python']}, {report['cpu']}: {report['seconds']}")
    return report


def take_over(clone: Path, new: str) -> None:
    """Give this checkout the commit and the tag that were made in the clone."""
    run("git", "fetch", "--quiet", clone, f"refs/tags/v{new}:refs/tags/v{new}", cwd=ROOT)
    run("git", "merge", "--quiet", "--ff-only", f"v{new}", cwd=ROOT)
    say(f"committed and tagged v{new}; `git push --follow-tags` publishes it")


def release(new: str, pythons: list[str], out: Path, scratch: Path) -> Path:
    """Make and check everything; returns the clone, which has the commit and the tag."""
    is_tagged = check_repository(new)
    clone = scratch / "clone"
    run("git", "clone", "--quiet", ROOT, clone, cwd=scratch)
    if not is_tagged:
        release_commit(clone, new)
    when = date_of(clone)
    made = scratch / "dist"
    made.mkdir()
    wheel = build(clone, scratch, made, when)
    report = try_everywhere(pythons, wheel)
    bill = sbom.bill(clone, new, wheel, report["packages"], when)
    (made / f"pyllmcancel-{new}.cdx.json").write_text(bill, "utf-8")
    notes = changelog.notes((clone / "CHANGELOG.md").read_text("utf-8"), new)
    (made / "NOTES.md").write_text(notes, "utf-8")
    checksums.write(made)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(made, out)
    say(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return clone


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="the new version, whose section is the changelog's newest")
    parser.add_argument("--tag", action="store_true", help="also commit and tag in this checkout, if all went well")
    text = "a Python to try the wheel with; may be given again (default: the oldest and the newest on the PATH)"
    parser.add_argument("--python", action="append", dest="pythons", metavar="PATH", help=text)
    arguments = parser.parse_args()
    out = ROOT / "dist" / arguments.version
    try:
        with tempfile.TemporaryDirectory() as folder:
            pythons = arguments.pythons or checks.interpreters()
            clone = release(arguments.version, pythons, out, Path(folder))
            if arguments.tag:
                take_over(clone, arguments.version)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
