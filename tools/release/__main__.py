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
from datetime import datetime
from pathlib import Path
from typing import Any

from . import artefacts, changelog, checks, checksums, repository, sbom
from .commands import ReleaseError, run, say, timed

ROOT = Path(__file__).resolve().parents[2]


def build(clone: Path, scratch: Path, out: Path, when: datetime) -> Path:
    """Make sdist and wheel, and have them checked; returns the wheel."""
    epoch = {"SOURCE_DATE_EPOCH": str(int(when.timestamp()))}
    with timed("sdist"):
        sdist = artefacts.build_sdist(clone, out, epoch)
    with timed("wheel, from the sdist with no index"):
        made = artefacts.build_wheel(sdist, scratch, epoch)
    tagged = scratch / "tagged"
    tagged.mkdir()
    wheel = Path(shutil.copy(artefacts.give_platform_tag(made, tagged, epoch), out))
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


def release(new: str, pythons: list[str], out: Path, scratch: Path) -> Path:
    """Make and check everything; returns the clone, which has the commit and the tag."""
    is_tagged = repository.check(ROOT, new)
    clone = scratch / "clone"
    run("git", "clone", "--quiet", ROOT, clone, cwd=scratch)
    if not is_tagged:
        repository.commit_and_tag(ROOT, clone, new)
    when = repository.date_of(clone)
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
                repository.take_over(ROOT, clone, arguments.version)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
