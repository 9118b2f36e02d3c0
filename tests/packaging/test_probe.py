"""The probe of the native benchmarks compiles: no other part of the tests builds it."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pybind11
import pytest

from tests.support.marks import mostly_long

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "vendor" / "llama.cpp"
OWN = (ROOT / "native", ROOT / "bench" / "native")
OTHERS = (
    *(LLAMA / folder for folder in ("src", "include", "ggml/include", "ggml/src", "tools/mtmd")),
    *(Path(pybind11.get_include()), Path(sysconfig.get_path("include"))),
)
SOURCES = sorted((ROOT / "bench" / "native").glob("*.cpp"))


@pytest.mark.parametrize(
    "source", mostly_long(SOURCES, ROOT / "bench" / "native" / "step_driver.cpp"), ids=lambda source: source.name
)
def test_the_probe_compiles_against_the_core(source: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    folders = [*(f"-I{path}" for path in OWN), *(f"-isystem{path}" for path in OTHERS)]
    command = [*compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror", *folders, source]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 0, found.stderr
