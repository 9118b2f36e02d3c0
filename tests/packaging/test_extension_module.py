"""Everything of llama.cpp is inside the one extension module, and nothing of it can be seen from outside."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyllmcancel import _native

MODULE = Path(_native.__file__)

# What every Linux has; whatever else the module needed, a wheel would have to carry.
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libm|libdl|libpthread|librt|libc\.musl-\w+|ld-linux[-\w]*|ld-musl-\w+)\.so(\.\d+)*"
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")


def binutils(tool: str, *options: str) -> str:
    """Return what `tool` of the compiler's binutils says of the module."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    return subprocess.run([tool, *options, str(MODULE)], capture_output=True, text=True, check=True).stdout


def test_only_the_init_function_is_exported() -> None:
    symbols = {line.split()[-1] for line in binutils("nm", "-D", "--defined-only").splitlines()}
    assert symbols == {"PyInit__native"}


def test_no_library_beyond_the_systems_own_is_needed() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", binutils("readelf", "-d"))
    assert needed
    assert [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)] == []


def test_a_release_has_no_fault_injection() -> None:
    assert not hasattr(_native, "set_fault")
    assert b"fault injection" not in MODULE.read_bytes()


def test_no_search_path_is_left_in_the_module() -> None:
    assert re.findall(r"\((?:RPATH|RUNPATH)\)", binutils("readelf", "-d")) == []


def test_the_module_does_not_name_the_folder_it_was_built_in() -> None:
    assert re.findall(rb"(?<![\w.])/[^\0\n]*/vendor/llama\.cpp/", MODULE.read_bytes()) == []
