"""Where programs, and Pythons with a package, are found: by the environment, in ``build/``, or on the PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRIES = 3


class NotAvailableError(Exception):
    """A program to measure is not installed here; the message says what was looked for, and where."""


def find_program(variable: str, default: Path) -> str:
    """Find a program by the environment's `variable`, else at `default`, else by its name on the PATH."""
    named = os.environ.get(variable)
    places = [named] if named else [str(default), default.name]
    for place in places:
        if (found := shutil.which(place)) is not None:
            return found
    raise NotAvailableError(f"{default.name} was not found at {' or '.join(places)}; {variable} names another place")


def find_python(package: str) -> str:
    """Find the Python in which `package` is installed: by ``PEERS_PYTHON``, else the one in build/peers."""
    python = find_program("PEERS_PYTHON", ROOT / "build" / "peers" / "bin" / "python")
    # -P: a folder of the package's name may lie in the working directory.
    if ask(python, "-P", "-c", f"import importlib.util as u; print(u.find_spec({package!r}) is not None)") != "True":
        raise NotAvailableError(f"{package} is not installed for {python}; PEERS_PYTHON names another Python")
    return python


def find_own_python() -> str:
    """Return the Python that runs this project's server: ``BENCH_PYTHON``, else the one that runs the benchmark."""
    return os.environ.get("BENCH_PYTHON", sys.executable)


def package_version(python: str, distribution: str) -> str:
    """Version of an installed distribution."""
    return ask(python, "-P", "-c", f"import importlib.metadata as m; print(m.version({distribution!r}))")


def ask(*command: str) -> str:
    """Return a command's output; NotAvailableError if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAvailableError(f"{command[0]} does not run: {error}") from error
    return (done.stdout.strip() or done.stderr.strip()).strip()


def run_llama_tool(name: str, *arguments: object) -> list[dict[str, Any]]:
    """Run one of llama.cpp's own benchmarks, and read the JSON lines that it writes."""
    program = find_program(name.upper().replace("-", "_"), ROOT / "build" / "tools" / "bin" / name)
    # They write in a thread, whose last lines are lost now and then when the process ends on a busy machine.
    for _ in range(TRIES):
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True, timeout=600)
        if found := [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]:
            return found
    raise RuntimeError(f"{name} wrote no JSON in {TRIES} runs")
