"""Build the package with fault injection, and run ``tests/injection`` on it.

Each call of llama.cpp whose failure the core handles is made to fail, at each place and with each code, through the
real engine. ``python tools/test_faults.py`` builds with ``PYLLMCANCEL_FAULTS`` into an environment of its own in
``build``; ``python tools/test_faults.py -- -k decode`` hands arguments on to pytest. Releases have none of this.

Needs what CONTRIBUTING.md installs.
"""

from __future__ import annotations

import os
import subprocess
import sys

from other_build import ROOT, install


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--"]
    python = install("faults", "faults", "--config-settings=cmake.define.PYLLMCANCEL_FAULTS=ON")
    command = [str(python), "-m", "pytest", "-m", "", "tests/injection", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONSAFEPATH": "1"}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
