"""Write one toy GGUF per architecture, with llama.cpp's own generator, for the sweep over all abort points.

    python tools/make_toy_models.py build/toys

Builds ``test-llama-archs`` from the pinned source in ``build/tools`` (minutes, once) and runs it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from build_llama import BUILD, build

# The deviation of the random weights: large enough that the logits tell sequences apart.
DEVIATION = "0.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    build("test-llama-archs")
    subprocess.run([str(BUILD / "bin" / "test-llama-archs"), "-o", str(folder), "-d", DEVIATION], check=True)
    sys.stdout.write(f"{len(list(folder.glob('*.gguf')))} models in {folder}\n")


if __name__ == "__main__":
    main()
