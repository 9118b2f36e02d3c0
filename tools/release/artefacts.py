"""The sdist, and the wheel that is built from it with no index in reach; what both must and must not contain."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .commands import Environment, ReleaseError, only, run

# pip finds nothing, so a build that tried to fetch llama.cpp, or anything else, would fail.
NO_INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
# One wheel for every processor: a back end for each kind, one of which is loaded at run time.
ANY_CPU = "-Ccmake.define.PYLLMCANCEL_MODULES=ON"
# The baseline, and one for each generation of registers: the others may change with llama.cpp.
VARIANTS = ("x64", "sse42", "haswell", "skylakex", "zen4", "sapphirerapids")

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
        "tools/mtmd/test",
        "tools/server/",
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
    *(f"pyllmcancel/backends/libggml-cpu-{variant}.so" for variant in VARIANTS),
)
WHEEL_REFUSES = ("vendor/", "lib/", "pyllmcancel.libs/")


def build_sdist(source: Path, out: Path, environment: Environment) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", out, cwd=source, environment=environment)
    sdist = only(out, "*.tar.gz")
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    check_names(sdist, names, SDIST_WANTS, SDIST_REFUSES)
    return sdist


def build_wheel(sdist: Path, scratch: Path, environment: Environment) -> Path:
    """Build from the unpacked sdist, outside the checkout and with no index. The wheel's tag is this machine's."""
    with tarfile.open(sdist) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2, Debian 12's
        tar.extractall(scratch)
    source = scratch / sdist.name.removesuffix(".tar.gz")
    out = scratch / "wheel"
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", ANY_CPU, "-o", out)
    run(*command, cwd=source, environment={**environment, **NO_INDEX})
    wheel = only(out, "*.whl")
    check_wheel(wheel, source)
    return wheel


def check_wheel(wheel: Path, source: Path) -> None:
    """Check the wheel's content: the licences are those of llama.cpp, the demo model's texts, and the page's code."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/licenses"
    licences = ("LICENSE", *sorted(f"licenses/{path.name}" for path in (source / "licenses").iterdir()))
    check_names(wheel, names, [*WHEEL_WANTS, *(f"{info}/{name}" for name in licences)], WHEEL_REFUSES)


def check_names(artefact: Path, names: set[str], wants: Sequence[str], refuses: Sequence[str]) -> None:
    """Compare the names in an archive with the lists of required and forbidden names."""
    missing = [name for name in wants if name not in names]
    unwanted = sorted(name for name in names if name.startswith(tuple(refuses)))
    if missing or unwanted:
        raise ReleaseError(f"{artefact.name}: missing {missing}, unwanted {unwanted[:5]} (of {len(unwanted)})")


def give_platform_tag(wheel: Path, out: Path, environment: Environment) -> Path:
    """Copy the wheel with the tag of the oldest Linux on which it runs. It needs no library that is not on each."""
    command = (sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--only-plat", "-w", out, wheel)
    run(*command, cwd=out, environment=environment)
    tagged = only(out, "*.whl")
    if "-manylinux_" not in tagged.name:
        raise ReleaseError(f"auditwheel gives no manylinux tag to {tagged.name}")
    return tagged
