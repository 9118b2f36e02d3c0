"""Fetch what ``pyllmcancel/page/vendor/VENDORED.toml`` names, with npm.

The archive of a package is taken only with the integrity that the TOML pins, and a file of it only with its sha256: on
anything else nothing is written, and what is wrong is said, with the sha256 that was found. Run it by hand, after a
change of the TOML; neither the build nor the tests do, but a test compares the files with the TOML.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("pyllmcancel/page/vendor")
PINS = ROOT / FOLDER / "VENDORED.toml"
ALLOWED = (FOLDER, Path("licenses"))


class VendorError(Exception):
    """A package is not what the TOML says; the message says how."""


def packages() -> list[dict[str, Any]]:
    with PINS.open("rb") as handle:
        found: list[dict[str, Any]] = tomllib.load(handle)["package"]
    return found


def fetch(package: dict[str, Any], into: Path) -> Path:
    """The package's archive, whose integrity is the pinned one."""
    npm = shutil.which("npm")
    if npm is None:
        raise VendorError("there is no npm on the PATH")
    what = f"{package['name']}@{package['version']}"
    command = [npm, "pack", what, "--silent", "--ignore-scripts", "--pack-destination", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=into)
    if done.returncode != 0:
        raise VendorError(f"npm could not fetch {what}:\n{done.stderr.strip()}")
    archive = into / done.stdout.split()[-1]
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if integrity != package["integrity"]:
        raise VendorError(f"the archive of {what} is not the pinned one: it has the integrity {integrity}")
    return archive


def contents(package: dict[str, Any], archive: Path) -> Iterator[tuple[Path, bytes, str]]:
    """For each file that the TOML names: where it belongs, what it holds, and what is wrong with it."""
    with tarfile.open(archive) as tar:
        for entry in package["files"]:
            place = Path(entry["to"])
            if ".." in place.parts or not any(place.is_relative_to(folder) for folder in ALLOWED):
                raise VendorError(f"{place} is not in {' or '.join(map(str, ALLOWED))}")
            try:
                handle = tar.extractfile(f"package/{entry['from']}")
            except KeyError:
                handle = None
            if handle is None:
                raise VendorError(f"{package['name']} {package['version']} has no file {entry['from']}")
            data = handle.read()
            found = hashlib.sha256(data).hexdigest()
            wrong = f"{place} should have the sha256 {entry['sha256']!r}, not {found}"
            yield place, data, "" if found == entry["sha256"] else wrong


def main() -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="vendor-page-") as scratch:
            found = [file for each in packages() for file in contents(each, fetch(each, Path(scratch)))]
    except VendorError as error:
        sys.stderr.write(f"vendor_page: {error}\n")
        return 1
    wrong = [text for _, _, text in found if text]
    if not wrong:
        for place, data, _ in found:
            (ROOT / place).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / place).write_bytes(data)
    for text in wrong:
        sys.stderr.write(f"vendor_page: {text}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
