"""Spin, which tries every interleaving of a protocol. Needs Debian's package `spin` and a C compiler."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
SAFETY = ("-DSAFETY", "-DNOCLAIM")
LIVENESS = ("-DNFAIR=3",)
# Of a protocol with a fault, which is found in a moment: to optimise the verifier would take longer.
QUICKLY = ("-O0",)
DEEP = "-m1000000"

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or COMPILER is None,
    reason="THIS PROTOCOL WAS NOT CHECKED: it takes spin (apt install spin) and a C compiler",
)


def verify(protocol: Path, folder: Path, defines: Sequence[str], options: Sequence[str], *arguments: str) -> str:
    """Make a verifier of `protocol` in `folder` and run it; what it says."""
    call(["spin", *[f"-D{name}" for name in defines], "-a", str(protocol)], folder)
    call([COMPILER, "-O1", "-w", "-DCOLLAPSE", "-DMEMLIM=6000", *options, "-o", "pan", "pan.c"], folder)
    said = call(["./pan", DEEP, *arguments], folder)
    assert "max search depth too small" not in said
    return said


def call(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # A verifier that has found a fault says so, and ends with a status of its own.
    assert command[0] == "./pan" or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def errors(said: str) -> int:
    found = re.search(r"errors: (\d+)", said)
    assert found is not None, said
    return int(found[1])


def violated(said: str) -> str:
    """The assertion that does not hold."""
    found = re.search(r"assertion violated (.*) \(at depth", said)
    assert found is not None, said
    return found[1]
