"""Which lines of the package the tests run: Python by coverage.py, C++ and Cython by gcov.

    python tools/measure_coverage.py                    # the whole suite
    python tools/measure_coverage.py -- tests/native    # some of it

Builds the package with gcov's counters, and with the faults that ``tests/injection`` asks for, into an environment of
its own, runs the tests there, their servers included, and prints a table for each; ``build/coverage/python/index.html``
shows the lines. Needs what the ``[dev]`` extra installs, and GCC. A process that is killed counts nothing. The exit
status is pytest's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from other_build import BUILDS, ROOT, install

OUT = BUILDS / "coverage"
CONFIGURATION = OUT / "coveragerc"
SETTINGS = f"""
[run]
branch = true
parallel = true
sigterm = true
source_pkgs = pyllmcancel
data_file = {OUT}/counts
[paths]
source =
    pyllmcancel
    */site-packages/pyllmcancel
[report]
skip_covered = true
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
    \\.\\.\\.$
"""
OF_A_RELEASE = (
    "tests/packaging/test_extension_module.py::test_a_release_has_no_fault_injection",
    "tests/packaging/test_stub.py::test_the_stub_matches_the_module",
)
# No statement: braces, comments, decorators, and Cython's declarations, to which code of Cython's own is attributed.
NO_STATEMENT = re.compile(r"\s*(?:[{}();]*|#.*|@.*|\"\"\".*|cdef (?!.*=).*)\s*")
# Each process of the environment starts counting where the variable COVERAGE_PROCESS_START is set.
START = "import coverage; coverage.process_startup()\n"


def build() -> Path:
    """Install the package with counters; returns the Python that has it."""
    defines = [f"--config-settings=cmake.define.PYLLMCANCEL_{name}=ON" for name in ("COVERAGE", "FAULTS")]
    python = install("coverage", "counted", *defines)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(python.parent.parent)}))
    (own / "start_coverage.pth").write_text(START)
    return python


def forget() -> None:
    """Remove what an earlier run counted."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    for counts in (BUILDS / "counted").rglob("*.gcda"):
        counts.unlink()


def run_tests(python: Path, tests: list[str]) -> int:
    CONFIGURATION.write_text(SETTINGS)
    environment = os.environ | {"COVERAGE_PROCESS_START": str(CONFIGURATION), "PYTHONSAFEPATH": "1"}
    command = [str(python), "-m", "pytest", "-n0", "-m", "", *(f"--deselect={test}" for test in OF_A_RELEASE), *tests]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def report_python(python: Path) -> None:
    command = [str(python), "-P", "-m", "coverage"]
    options = ["--rcfile", str(CONFIGURATION)]
    for verb, *more in (("combine", "--quiet"), ("html", "--quiet", "-d", str(OUT / "python")), ("report",)):
        subprocess.run([*command, verb, *options, *more], cwd=ROOT, check=True)


def report_native() -> None:
    """Lines by file of ``native``; a line of a header counts once, wherever it was compiled."""
    counts: defaultdict[Path, Counter[int]] = defaultdict(Counter)
    objects = BUILDS / "counted"
    for data in objects.rglob("*.gcda"):
        command = ["gcov", "--json-format", "--stdout", str(data)]
        found = subprocess.run(command, cwd=objects, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        for file in json.loads(found.stdout)["files"]:
            path = (objects / file["file"]).resolve()
            if path.is_relative_to(ROOT / "native"):
                for line in file["lines"]:
                    counts[path][line["line_number"]] += line["count"]
    for path, lines in counts.items():
        drop_what_is_no_statement(path, lines)
    rows: list[tuple[str, Mapping[Any, int]]] = [
        (str(path.relative_to(ROOT)), lines) for path, lines in sorted(counts.items())
    ]
    total: Counter[Any] = Counter({(name, number): count for name, lines in rows for number, count in lines.items()})
    text = "".join(f"{name:34} {shown(lines)}\n" for name, lines in [*rows, ("TOTAL", total)])
    (OUT / "native.txt").write_text(text)
    sys.stdout.write(f"\n{'Name':34} {'lines':>6} {'not run':>8} {'run':>6}\n{text}")


def drop_what_is_no_statement(path: Path, lines: Counter[int]) -> None:
    """Cython's own code comes after the last line of the module, and is counted as if it were its."""
    text = path.read_text().splitlines()
    for number in list(lines):
        if number > len(text) or NO_STATEMENT.fullmatch(text[number - 1]):
            del lines[number]


def shown(lines: Mapping[Any, int]) -> str:
    missing = [number for number, count in lines.items() if not count]
    where = ranges(missing) if all(isinstance(number, int) for number in missing) else ""
    return f"{len(lines):6} {len(missing):8} {1 - len(missing) / len(lines):6.0%}  {where}"


def ranges(numbers: Iterable[int]) -> str:
    """Line numbers as ranges."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="for pytest; default: the whole suite")
    tests = parser.parse_args().tests
    python = build()
    forget()
    status = run_tests(python, tests)
    report_python(python)
    report_native()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
