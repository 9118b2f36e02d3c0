"""Get the programs that the benchmarks need into ``build/``, where they look for them.

    python -m bench.prepare             # everything
    python -m bench.prepare programs    # some of it

llama.cpp's own programs and the probe are built from the pinned source; the other servers, and AIPerf, are installed
from PyPI into an environment for each of the two. Several minutes at first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import partial

from bench.peers.programs import ROOT

PROGRAMS = ("llama-server", "llama-bench", "llama-batched-bench", "pyllmcancel_probe")
PEERS = ("llama-cpp-python[server]==0.3.36",)
AIPERF = ("aiperf==0.13.0",)


def build_programs() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "build_llama.py"), *PROGRAMS], check=True)


def install(name: str, requirements: tuple[str, ...]) -> None:
    folder = ROOT / "build" / name
    if not (folder / "bin" / "pip").exists():
        venv.create(folder, with_pip=True, symlinks=True, clear=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", *requirements], check=True)


PARTS: dict[str, Callable[[], None]] = {
    "programs": build_programs,
    "peers": partial(install, "peers", PEERS),
    "aiperf": partial(install, "aiperf", AIPERF),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; by default all of them")
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts).difference(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
