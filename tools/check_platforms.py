"""Check on Linux that the core compiles for Windows.

    python tools/check_platforms.py          # apt install g++-mingw-w64-x86-64-posix

It runs nothing, so it says nothing of how the package behaves there. ``tools/lint`` checks types for macOS and Windows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "native"
LLAMA = ROOT / "vendor" / "llama.cpp"
COMPILER = "x86_64-w64-mingw32-g++-posix"

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
# ggml's own come last: names of headers there are those of others.
SYSTEM_HEADERS = ("include", "ggml/include", "src", "common", "", "vendor", "ggml/src", "ggml/src/ggml-cpu")
# Those of ggml's CPU back end, into which native/ggml is compiled: AVX2, as on most processors, has the most code.
GGML_FLAGS = ("-march=x86-64-v3", "-DGGML_USE_LLAMAFILE", "-DGGML_USE_CPU_REPACK")
GGML_HEADERS = ("ggml/src", "ggml/src/ggml-cpu", "ggml/include")  # its common.h is not llama.cpp's
ELSEWHERE = {"platform_posix.cpp", "faults.cpp"}  # the second needs Python's headers, for Windows


def check_core() -> bool:
    """Have each file of the core parsed by a compiler for Windows."""
    fine = True
    for source in sorted(NATIVE.glob("*/*.cpp")):
        if source.name in ELSEWHERE:
            continue
        is_ggml = source.parent.name == "ggml"
        flags = [*GGML_FLAGS, *headers(GGML_HEADERS)] if is_ggml else headers(SYSTEM_HEADERS)
        done = subprocess.run([COMPILER, *FLAGS, *flags, f"-I{NATIVE}", str(source)], check=False)
        fine = done.returncode == 0 and fine
    return fine


def headers(names: Sequence[str]) -> list[str]:
    return [argument for name in names for argument in ("-isystem", str(LLAMA / name))]


def main() -> int:
    if shutil.which(COMPILER) is None:
        raise SystemExit(f"check_platforms: {COMPILER} is not installed")
    fine = check_core()
    sys.stderr.write(f"check_platforms: the core {'compiles' if fine else 'does not compile'} for Windows\n")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
