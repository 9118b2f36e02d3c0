"""PYLLMCANCEL_BACKEND: a name that is unknown, or a tool that is missing, ends the build before it has begun."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# `look_for_…` needs a C++ compiler only where it compiles something, which none does here before it refuses.
PROJECT = """
cmake_minimum_required(VERSION 3.24...4.0)
project(backends LANGUAGES {languages})
include({root}/cmake/backends.cmake)
select_backends()
foreach(name IN ITEMS CUDA VULKAN METAL HIP SYCL BLAS)
  message(STATUS "GGML_${{name}}=${{GGML_${{name}}}}")
endforeach()
"""


@pytest.fixture
def cmake() -> str:
    beside = Path(sys.executable).with_name("cmake")
    found = str(beside) if beside.exists() else shutil.which("cmake")
    if found is None:
        pytest.skip("cmake is not installed")
    return found


def configure(cmake: str, folder: Path, backends: str, *options: str, languages: str = "NONE") -> tuple[int, str]:
    """Exit status of a configuration with these back ends, and what it says, its lines joined."""
    folder.mkdir(exist_ok=True)
    (folder / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT.as_posix(), languages=languages))
    command = [cmake, "-S", str(folder), "-B", str(folder / "build"), f"-DPYLLMCANCEL_BACKEND={backends}", *options]
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDACXX", "ROCM_PATH")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("backends", ["cuba", "vulkan,cuba", "CUDA"])
def test_an_unknown_name_is_refused_with_the_known_ones(cmake: str, tmp_path: Path, backends: str) -> None:
    status, said = configure(cmake, tmp_path / "project", backends)
    assert status != 0
    assert f'there is no back end "{"CUDA" if backends == "CUDA" else "cuba"}"' in said
    assert "Known are cuda, vulkan, metal, hip, sycl, blas" in said


@pytest.mark.parametrize(
    ("backend", "package", "advice"),
    [
        ("cuda", "CUDAToolkit", "apt install cuda-toolkit"),
        ("vulkan", "Vulkan", "apt install libvulkan-dev glslc spirv-headers"),
        ("vulkan", "SPIRV-Headers", "SPIRV-Headers"),
        ("blas", "BLAS", "apt install libopenblas-dev pkg-config"),
    ],
)
def test_what_is_missing_comes_with_advice(cmake: str, tmp_path: Path, backend: str, package: str, advice: str) -> None:
    status, said = configure(cmake, tmp_path / "project", backend, f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON")
    assert status != 0
    assert f"PYLLMCANCEL_BACKEND={backend}:" in said
    assert advice in said


@pytest.mark.parametrize(("headers", "fine"), [("", False), ("#define VK_EXT_layer_settings 1\n", True)])
def test_headers_of_vulkan_that_are_too_old_are_refused(cmake: str, tmp_path: Path, headers: str, fine: bool) -> None:
    include = tmp_path / "include"
    (include / "vulkan").mkdir(parents=True)
    (include / "vulkan" / "vulkan_core.h").write_text("#define VK_HEADER_VERSION 239\n" + headers)
    (tmp_path / "SPIRV-HeadersConfig.cmake").touch()
    options = [f"-DVulkan_INCLUDE_DIR={include}", f"-DSPIRV-Headers_DIR={tmp_path}"]
    options += [f"-DVulkan_{name}={sys.executable}" for name in ("LIBRARY", "GLSLC_EXECUTABLE")]
    status, said = configure(cmake, tmp_path / "project", "vulkan", *options)
    assert (status == 0) is fine, said
    assert ("older than 1.3.272" in said) is not fine


@pytest.mark.skipif(sys.platform == "darwin", reason="it is there")
def test_metal_is_refused_elsewhere(cmake: str, tmp_path: Path) -> None:
    status, said = configure(cmake, tmp_path / "project", "metal")
    assert status != 0
    assert "Metal is macOS's" in said


def test_none_chooses_nothing(cmake: str, tmp_path: Path) -> None:
    status, said = configure(cmake, tmp_path / "project", "")
    assert status == 0, said
    for name in ("CUDA", "VULKAN", "METAL", "HIP", "SYCL", "BLAS"):
        assert f"GGML_{name}= " in said + " "


def test_llama_cpps_own_names_are_left_alone(cmake: str, tmp_path: Path) -> None:
    status, said = configure(cmake, tmp_path / "project", "", "-DGGML_CUDA=ON")
    assert status == 0, said
    assert "GGML_CUDA=ON" in said
