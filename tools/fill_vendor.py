"""Fill ``vendor/llama.cpp`` with the source that ``vendor/llama.cpp/PIN.toml`` names.

A no-op when the tree is current. CMake runs it when the tree is missing, so a fresh clone needs no extra step;
run it by hand (``python tools/fill_vendor.py``) after a change of the pin. The archive comes from PyPI through pip,
which verifies its sha256 before anything is unpacked.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "vendor" / "llama.cpp"
PIN_FILE = TREE / "PIN.toml"
STAMP = TREE / ".filled"


class FillError(Exception):
    """The tree could not be filled; the message says what to do."""


def read_pin() -> dict[str, Any]:
    with PIN_FILE.open("rb") as handle:
        return tomllib.load(handle)


def is_current() -> bool:
    """Return whether the tree was filled completely, from the pin that is checked out."""
    return STAMP.is_file() and STAMP.read_bytes() == PIN_FILE.read_bytes()


def download(source: dict[str, str], into: Path) -> Path:
    """Fetch the sdist with pip, which refuses it when its sha256 is not the pinned one."""
    lock = into / "lock.txt"
    lock.write_text(f"{source['project']}=={source['version']} --hash=sha256:{source['sha256']}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--require-hashes", "-r", str(lock), "-d", str(into)]
    # pip prepares an sdist's metadata even for a download; with the backend at hand it need not install another.
    if importlib.util.find_spec("scikit_build_core") is not None:
        command.insert(-2, "--no-build-isolation")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FillError(explain(done.stderr, source))
    archives = list(into.glob("*.tar.gz"))
    if len(archives) != 1:
        raise FillError(f"pip left {len(archives)} archives instead of one; run it again")
    return archives[0]


def explain(stderr: str, source: dict[str, str]) -> str:
    """Turn pip's stderr into one sentence on what is wrong and what to do, with pip's own words below."""
    what = f"{source['project']} {source['version']}"
    if "DO NOT MATCH THE HASHES" in stderr:
        advice = (
            f"the sdist of {what} does not have the sha256 that {PIN_FILE.name} pins. Nothing was unpacked. "
            "Either the index or a proxy served another file, or the pin was edited wrongly: compare it with the hash "
            "that the index lists for that sdist, and with `git diff` of the pin."
        )
    elif "No module named pip" in stderr:
        advice = "this Python has no pip; run `python -m ensurepip` and build again."
    elif "No matching distribution" in stderr or "connection" in stderr.lower():
        advice = (
            f"{what} could not be fetched from the package index. The build needs PyPI (or a mirror in pip's "
            f"configuration) once; to build with no network, fill {TREE} elsewhere and copy it here, or use our sdist."
        )
    else:
        advice = f"pip could not download {what}."
    return f"{advice}\n--- pip said:\n{stderr.strip()}"


def unpack(archive: Path, pin: dict[str, Any], into: Path) -> None:
    """Unpack the pinned trees, and nothing else, below `into`."""
    prefix = pin["source"]["prefix"]
    wanted = tuple(prefix + tree for tree in (*pin["trees"]["build"], *pin["trees"]["tests"]))
    with tarfile.open(archive) as tar:
        # Python 3.11 has filters from its fourth release on; Debian 12 has the second. The archive's hash was checked.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in tar:
            if member.name.startswith(wanted):
                member.name = member.name.removeprefix(prefix)
                tar.extract(member, into)
    if not (into / "include" / "llama.h").is_file():
        raise FillError(f"the archive has no {prefix}include/llama.h; is [source].prefix in {PIN_FILE.name} right?")


def replace_tree(fresh: Path) -> None:
    """Swap the old tree's entries for the fresh ones; the stamp goes first and comes back last."""
    STAMP.unlink(missing_ok=True)
    for old in TREE.iterdir():
        if old == PIN_FILE:
            continue
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for entry in fresh.iterdir():
        shutil.move(entry, TREE / entry.name)
    STAMP.write_bytes(PIN_FILE.read_bytes())


def fill() -> bool:
    """Fill the tree; returns False when there was nothing to do."""
    if is_current():
        return False
    pin = read_pin()
    # Beside the tree, so that the final move is a rename on one file system.
    with tempfile.TemporaryDirectory(dir=TREE.parent, prefix=".filling-") as scratch:
        fresh = Path(scratch) / "tree"
        fresh.mkdir()
        archive = download(pin["source"], Path(scratch))
        unpack(archive, pin, fresh)
        replace_tree(fresh)
    return True


def main() -> int:
    try:
        filled = fill()
    except (FillError, OSError) as error:
        sys.stderr.write(f"fill_vendor: {error}\n")
        return 1
    sys.stderr.write(f"fill_vendor: {TREE} {'filled' if filled else 'is current'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
