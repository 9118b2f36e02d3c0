"""Check for macOS and Windows what can be checked on Linux: types, and that the core compiles for Windows.

    python tools/check_platforms.py          # needs mypy, and, for the core, apt install g++-mingw-w64-x86-64-posix

It runs nothing on either, so it says nothing of how the package behaves there. ``tools/lint`` does the types, too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
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
ELSEWHERE = {"platform_posix.cpp"}
FAULTS = {"faults.cpp"}  # needs Python's headers, for Windows


def check_types(platform: str) -> bool:
    cache = ROOT / ".mypy_cache" / platform
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", str(cache), "pyllmcancel"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def check_core() -> bool:
    """Have each file of the core parsed by a compiler for Windows."""
    includes = [f"-I{NATIVE}", *(argument for name in SYSTEM_HEADERS for argument in ("-isystem", str(LLAMA / name)))]
    fine = True
    for source in sorted(NATIVE.glob("*/*.cpp")):
        if source.parent.name == "ggml" or source.name in ELSEWHERE | FAULTS:
            continue
        done = subprocess.run([COMPILER, *FLAGS, *includes, str(source)], check=False)
        fine = done.returncode == 0 and fine
    return fine


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
