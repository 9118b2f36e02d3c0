"""Everything of llama.cpp is inside the one extension module, and nothing of it can be seen from outside."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyllmcancel import _native

MODULE = Path(_native.__file__)
BACKENDS = MODULE.with_name("backends")  # of a build with PYLLMCANCEL_MODULES

# What every Linux has; whatever else the module needed, a wheel would have to carry.
SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|libc\.musl-\w+|ld-(linux|musl)[-\w]*)\.so(\.\d+)*")
# Between modules exceptions are thrown: they share the C++ library.
SHARED_LIBRARIES = re.compile(r"libpyllmcancel-ggml(-base)?\.so|libstdc\+\+\.so\.6|libgcc_s\.so\.1")

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
    others = [name for name in needed if not SYSTEM_LIBRARIES.fullmatch(name)]
    assert [name for name in others if not (BACKENDS.is_dir() and SHARED_LIBRARIES.fullmatch(name))] == []


def test_a_release_has_no_fault_injection() -> None:
    assert not hasattr(_native, "set_fault")
    assert b"fault injection" not in MODULE.read_bytes()


def test_no_search_path_is_left_in_the_module() -> None:
    found = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", binutils("readelf", "-d"))
    assert found == (["$ORIGIN/backends"] if BACKENDS.is_dir() else [])


def test_a_cpu_has_a_variant_where_back_ends_are_modules() -> None:
    variant = _native.cpu_variant()
    assert (variant is not None) == BACKENDS.is_dir()
    assert variant is None or (BACKENDS / f"libggml-cpu-{variant}.so").is_file()


def loaded(variant: str) -> subprocess.CompletedProcess[str]:
    """Ask a new process which back end it loads if the environment names `variant`."""
    command = [sys.executable, "-c", "from pyllmcancel import _native; print(_native.cpu_variant())"]
    environment = os.environ | {"PYLLMCANCEL_CPU_VARIANT": variant}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not BACKENDS.is_dir(), reason="the CPU's back end is linked in")
def test_the_environment_chooses_the_cpus_back_end() -> None:
    assert loaded("x64").stdout.strip() == "x64"
    assert (BACKENDS / f"libggml-cpu-{loaded('').stdout.strip()}.so").is_file()
    unknown = loaded("pentium")
    assert unknown.returncode != 0
    assert "PYLLMCANCEL_CPU_VARIANT allows only pentium" in unknown.stderr


def test_the_module_does_not_name_the_folder_it_was_built_in() -> None:
    assert re.findall(rb"(?<![\w.])/[^\0\n]*/vendor/llama\.cpp/", MODULE.read_bytes()) == []
