"""A build for a GPU on a machine without the GPU's libraries says which one lacks, and what brings it."""

import re
import shutil
import subprocess
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

import pyllmcancel
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.missing_libraries import missing_library

MODULE = "pyllmcancel._native"
GLIBC = "{}: cannot open shared object file: No such file or directory"
MUSL = "Error loading shared library {}: No such file or directory (needed by /x/pyllmcancel/_native.abi3.so)"
MACOS = "dlopen(/x/_native.abi3.so, 0x0002): Library not loaded: @rpath/{}\n  Referenced from: <…> /x/_native.abi3.so"


def cannot_import(text: str, name: str = MODULE) -> ImportError:
    return ImportError(text, name=name, path="/x/pyllmcancel/_native.abi3.so")


@pytest.mark.parametrize("system", [GLIBC, MUSL, MACOS])
@pytest.mark.parametrize(
    ("library", "provider"),
    [
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libcudart.so.13", "CUDA toolkit"),
        ("libcublas.so.13", "CUDA toolkit"),
        ("libvulkan.so.1", "libvulkan1"),
        ("libhipblas.so.3", "ROCm"),
        ("libsycl.so.8", "oneAPI"),
        ("libopenblas.so.0", "libopenblas0"),
        ("libother.so.2", ""),  # nobody's
    ],
)
def test_the_library_and_what_brings_it_are_named(system: str, library: str, provider: str) -> None:
    assert re.match(
        f"{re.escape(library)} is missing.*{provider}", missing_library(cannot_import(system.format(library)))
    )


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError(f"No module named '{MODULE}'", name=MODULE),
        cannot_import(GLIBC.format("libgfortran.so.5"), name="numpy._core._multiarray_umath"),
        cannot_import("undefined symbol: PyType_Ready"),
    ],
)
def test_other_failures_are_left_as_they_are(error: ImportError) -> None:
    assert missing_library(error) is None


class Unloadable(MetaPathFinder):
    """Has the compiled module need a library that is not there."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == MODULE:
            raise cannot_import(GLIBC.format("libcublas.so.13"))


def test_loading_an_engine_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pyllmcancel, "_native", raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Unloadable(), *sys.meta_path])
    with pytest.raises(ImportError, match=r"^libcublas\.so\.13 is missing, which comes with NVIDIA's CUDA toolkit"):
        compiled_module()


def test_a_module_whose_library_was_taken_away_is_told_as_python_tells_of_it(tmp_path: Path) -> None:
    """Not in words of ours: the error is the one of a real import."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None  # without one the package is not there either
    library, module = tmp_path / "libcublas.so.13", tmp_path / "_native.abi3.so"
    (tmp_path / "empty.cpp").write_text('extern "C" void empty() {}\n')
    make = [compiler, "-shared", "-fPIC", str(tmp_path / "empty.cpp")]
    subprocess.run([*make, "-Wl,-soname,libcublas.so.13", "-o", str(library)], check=True)
    subprocess.run([*make, "-Wl,--no-as-needed", str(library), "-o", str(module)], check=True)
    library.unlink()
    loader = ExtensionFileLoader("pyllmcancel._native", str(module))
    spec = spec_from_loader("pyllmcancel._native", loader)
    with pytest.raises(ImportError) as caught:
        module_from_spec(spec)
    assert missing_library(caught.value).startswith("libcublas.so.13 is missing")
