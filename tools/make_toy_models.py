"""Write one toy GGUF per architecture, with llama.cpp's own generator, for the sweep over all abort points.

    python tools/make_toy_models.py build/toys

Builds ``test-llama-archs`` from the pinned source in ``build/tools`` (minutes, once) and runs it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tools"
# The deviation of the random weights: large enough that the logits tell sequences apart.
DEVIATION = "0.1"


def cython_modules() -> Path:
    spec = find_spec("cython_cmake")
    if spec is None or spec.origin is None:
        raise SystemExit("make_toy_models: install the dev extra first (cython-cmake is missing)")
    return Path(spec.origin).parent / "cmake"


def build() -> Path:
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-DPYLLMCANCEL_LLAMA_TOOLS=ON"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_MODULE_PATH={cython_modules()}"]
    subprocess.run(configure, check=True)
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "test-llama-archs", "--parallel"], check=True)
    return BUILD / "bin" / "test-llama-archs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(build()), "-o", str(folder), "-d", DEVIATION], check=True)
    sys.stdout.write(f"{len(list(folder.glob('*.gguf')))} models in {folder}\n")


if __name__ == "__main__":
    main()
