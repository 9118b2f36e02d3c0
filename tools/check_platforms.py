"""Check for macOS and Windows what can be checked on Linux: types, and that the core compiles for Windows.

    python tools/check_platforms.py          # needs mypy, and, for the core, apt install g++-mingw-w64-x86-64-posix

It runs nothing on either, so it says nothing of how the package behaves there. ``tools/lint`` does the types, too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
LLAMA = ROOT / "vendor" / "llama.cpp"
COMPILER = "x86_64-w64-mingw32-g++-posix"
PLATFORMS = ("darwin", "win32")

# Those of CMakeLists.txt's target; Windows 8, as llama.cpp itself is built for.
FLAGS = (
    "-std=c++17",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-DNOMINMAX",
    "-D_WIN32_WINNT=0x602",
)
SYSTEM_HEADERS = ("include", "ggml/include", "src", "common", "", "vendor")
# Those of ggml's CPU back end, into which native/ggml is compiled: AVX2, as on most processors, has the most code.
GGML_FLAGS = ("-march=x86-64-v3", "-DGGML_USE_LLAMAFILE", "-DGGML_USE_CPU_REPACK")
GGML_HEADERS = ("ggml/src", "ggml/src/ggml-cpu", "ggml/include")  # its common.h is not llama.cpp's
ELSEWHERE = {"platform_posix.cpp"}
FAULTS = {"faults.cpp"}  # needs Python's headers, for Windows


def check_types(platform: str) -> bool:
    cache = ROOT / ".mypy_cache" / platform
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", str(cache), "pyllmcancel"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def check_core() -> bool:
    """Have each file of the core parsed by a compiler for Windows."""
    fine = True
    for source in sorted(NATIVE.glob("*/*.cpp")):
        if source.name in ELSEWHERE | FAULTS:
            continue
        is_ggml = source.parent.name == "ggml"
        flags = [*GGML_FLAGS, *headers(GGML_HEADERS)] if is_ggml else headers(SYSTEM_HEADERS)
        done = subprocess.run([COMPILER, *FLAGS, *flags, f"-I{NATIVE}", str(source)], check=False)
        fine = done.returncode == 0 and fine
    return fine


def headers(names: Sequence[str]) -> list[str]:
    return [argument for name in names for argument in ("-isystem", str(LLAMA / name))]


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    fine = [check_types(platform) for platform in PLATFORMS]
    if shutil.which(COMPILER) is None:
        sys.stderr.write(f"check_platforms: {COMPILER} is not installed, the core is not checked\n")
    else:
        fine.append(check_core())
        sys.stderr.write(f"check_platforms: the core {'compiles' if fine[-1] else 'does not compile'} for Windows\n")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())
