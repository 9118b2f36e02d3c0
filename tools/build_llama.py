"""Build targets that llama.cpp's pinned source, or the benchmarks, bring beside the package, in ``build/tools``.

    python tools/build_llama.py llama-server llama-bench

Needs what CONTRIBUTING.md installs, pybind11 of the ``[dev]`` extra included. Minutes at first; ccache, where it is
installed, knows what the package's own build compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tools"


def build(*targets: str) -> None:
    """Configure and build; what comes out lies in ``BUILD / "bin"``, the probe in ``build/probe``."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-DPYLLMCANCEL_LLAMA_TOOLS=ON", "-DPYLLMCANCEL_PROBE=ON"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MODULE_PATH={cython_modules()}"]
    subprocess.run(configure, check=True)
    # A bare --parallel lets make start every job at once.
    subprocess.run(
        ["cmake", "--build", str(BUILD), "--parallel", str(os.cpu_count()), "--target", *targets], check=True
    )


def cython_modules() -> Path:
    spec = find_spec("cython_cmake")
    if spec is None or spec.origin is None:
        raise SystemExit("build_llama: cython-cmake is missing; CONTRIBUTING.md says what to install")
    return Path(spec.origin).parent / "cmake"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="TARGET")
    build(*parser.parse_args().targets)
