"""Build the sdist, build the wheel from the sdist with no index in reach, and check both; then print their figures.

For maintainers, before a release, and too slow for the test suite: ``python tools/check_wheel.py``, with ``--portable``
or ``--modules`` for a wheel to be passed on. It needs the build requirements, cmake, ninja and the ``[dev]`` extra in
the environment that runs it (CONTRIBUTING.md).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# pip finds nothing, so a build that tried to fetch llama.cpp, or anything else, would fail.
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}

SDIST_WANTS = (
    ".clang-format",
    "CMakeLists.txt",
    "LICENSE",
    "native/binding/_native.pyx",
    "pyllmcancel/models/stdlib-coder.gguf",
    "tests/conftest.py",
    "vendor/llama.cpp/PIN.toml",
    "vendor/llama.cpp/common/chat.cpp",
    "vendor/llama.cpp/ggml/src/ggml.c",
    "vendor/llama.cpp/include/llama.h",
    "vendor/llama.cpp/LICENSE",
)
SDIST_REFUSES = tuple(
    f"vendor/llama.cpp/{tree}"
    for tree in (
        "common/arg.cpp",
        "common/download.cpp",
        "models/",
        "tests/",
        "tools/",
        "vendor/cpp-httplib/httplib.cpp",
    )
)
WHEEL_WANTS = (
    "pyllmcancel/_native.abi3.so",
    "pyllmcancel/_native.pyi",
    "pyllmcancel/llama_cpp_pin.toml",
    "pyllmcancel/models/stdlib-coder.gguf",
    "pyllmcancel/page/vendor/swagger-ui/swagger-ui-bundle.js",
    "pyllmcancel/py.typed",
)
# The licences of what the package contains: llama.cpp, the demo model's texts, and all that
# pyllmcancel/page/vendor/VENDORED.toml names.
WHEEL_LICENCES = ("LICENSE", *sorted(f"licenses/{path.name}" for path in (ROOT / "licenses").iterdir()))


class CheckError(Exception):
    """An artefact is not what it should be."""


class Figures:
    """The figures that the run measured, printed as it goes."""

    def size(self, path: Path) -> None:
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB\n")

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        sys.stdout.write(f"{what}: {time.monotonic() - begin:.0f} s\n")
        sys.stdout.flush()


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command quietly; its output is shown only when it fails."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise CheckError(f"{shown} failed:\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}")
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise CheckError(f"{len(found)} files match {pattern} instead of one")
    return found[0]


def check_names(artefact: Path, names: set[str], wants: Sequence[str], refuses: Sequence[str] = ()) -> None:
    """Compare the names in an archive with the lists of required and forbidden names."""
    missing = [name for name in wants if name not in names]
    unwanted = sorted(name for name in names if name.startswith(tuple(refuses))) if refuses else []
    if missing or unwanted:
        raise CheckError(f"{artefact.name}: missing {missing}, unwanted {unwanted[:5]} (of {len(unwanted)})")


def build_sdist(out: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", out, cwd=ROOT)
    sdist = only(out, "*.tar.gz")
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    check_names(sdist, names, SDIST_WANTS, SDIST_REFUSES)
    return sdist


def build_wheel(sdist: Path, out: Path, scratch: Path, define: str | None) -> Path:
    """Build from the unpacked sdist, outside the checkout and with no index."""
    with tarfile.open(sdist) as tar:
        tar.extractall(scratch, filter="data")
    source = scratch / sdist.name.removesuffix(".tar.gz")
    options = [] if define is None else [f"-Ccmake.define.{define}=ON"]
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", *options, "-o", out, cwd=source, **NO_INDEX)
    wheel = only(out, "*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/licenses"
    check_names(wheel, names, [*WHEEL_WANTS, *(f"{info}/{name}" for name in WHEEL_LICENCES)], ["vendor/", "lib/"])
    return wheel


def audit(wheel: Path) -> None:
    """The limited API is all that the module uses, and no other version's."""
    run(sys.executable, "-m", "abi3audit", "--strict", wheel, cwd=wheel.parent)


def install(wheel: Path, scratch: Path) -> None:
    """In an empty environment, from anywhere, the compiled module and the command line start."""
    venv.create(scratch / "venv", with_pip=True)
    python = scratch / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=scratch)
    run(python, "-c", "import pyllmcancel._native", cwd=scratch)
    run(scratch / "venv" / "bin" / "pyllmcancel", "--help", cwd=scratch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_mutually_exclusive_group()
    text = "a wheel for x86-64 with AVX2, to be passed on"
    kinds.add_argument("--portable", action="store_const", dest="define", const="PYLLMCANCEL_PORTABLE", help=text)
    text = "a wheel for any CPU, to be passed on, which chooses among its back ends at run time"
    kinds.add_argument("--modules", action="store_const", dest="define", const="PYLLMCANCEL_MODULES", help=text)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where both are left (default: dist)")
    arguments = parser.parse_args()
    figures = Figures()
    try:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            out = scratch / "dist"
            with figures.timed("sdist"):
                sdist = build_sdist(out)
            figures.size(sdist)
            with figures.timed("wheel, from the sdist with no index"):
                wheel = build_wheel(sdist, out, scratch, arguments.define)
            figures.size(wheel)
            with figures.timed("abi3audit --strict"):
                audit(wheel)
            with figures.timed("installed in an empty environment"):
                install(wheel, scratch)
            arguments.out.mkdir(parents=True, exist_ok=True)
            for artefact in (sdist, wheel):
                shutil.copy(artefact, arguments.out)
    except CheckError as error:
        sys.stderr.write(f"check_wheel: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
