"""Build the package with Vulkan, and run tests on Mesa's lavapipe, a Vulkan device that any processor can be.

What needs a device that is not ggml's CPU back end, and no GPU: ``python tools/test_vulkan.py`` builds into an
environment of its own in ``build`` (minutes). It runs ``tests/device``, the cuts after every node, the steps that are
ahead, the races, embeddings and the sweep's dozen: with all layers on the device, then with half of them (an hour).
``--install`` first installs Debian 12's packages; ``--layers half`` runs one round only, and ``-- tests/native`` other
tests. ``VK_ICD_FILENAMES`` may name another lavapipe than the one that is installed.

Ends with the closing line and the exit status of the first run that failed, or of the last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from other_build import ROOT, install

sys.path.append(str(ROOT))
from bench.gpu.products import BACKENDS  # found by the line above

PACKAGES = ("mesa-vulkan-drivers", "libvulkan-dev", "glslc", "spirv-headers")
# Much of the rest counts on the speed of the CPU's back end.
TESTS = (
    "tests/device",
    "tests/native/test_cuts.py",
    "tests/native/test_contract_ahead.py",
    "tests/native/test_steps_ahead.py",
    "tests/races/test_real_engine.py",
    "tests/embedding",
    "tests/architectures/test_sweep.py",
)
LAYERS = ("all", "half")
TIMEOUT = 900  # seconds for a test: the device is the processor
# llama.cpp ignores devices that are processors, unless they are named.
DEVICE = {"GGML_VK_VISIBLE_DEVICES": "0"}
# The lavapipe of Debian 12's Mesa 22.3.6 corrupts the heap; that of Mesa 25.0.7 does not (seen on 2026-11-26). The old
# one takes references to buffers that are destroyed, if a descriptor set still names them. Vulkan permits such sets if
# no shader uses the descriptors (VUID-vkCmdDispatch-None-08114), and ggml-vulkan leaves them, mostly after kernels with
# many buffers. Without fused kernels, the reordering of graphs and models with experts, crashes are rare, and not
# impossible. By the first of these switches `tests/support/device.py` knows that it has to leave out such models.
OLD_DEVICE = DEVICE | {"GGML_VK_DISABLE_FUSION": "1", "GGML_VK_DISABLE_GRAPH_OPTIMIZE": "1"}
SOUND_SINCE = (1, 4)  # the Vulkan of Mesa 25.0, the oldest one that was seen to be sound; Debian 12 has Mesa 22.3
LAVAPIPE = "lvp_icd*.json"


def manifests() -> list[Path]:
    """Files that tell Vulkan's loader where lavapipe is."""
    if named := os.environ.get("VK_ICD_FILENAMES"):
        return [Path(name) for name in named.split(os.pathsep)]
    return [path for folder in ("/usr/share", "/etc") for path in Path(folder, "vulkan/icd.d").glob(LAVAPIPE)]


def device(manifest: Path) -> dict[str, str]:
    """Environment with which llama.cpp computes on this lavapipe."""
    version = json.loads(manifest.read_text())["ICD"]["api_version"]
    major, minor, *_ = map(int, version.split("."))
    return DEVICE if (major, minor) >= SOUND_SINCE else OLD_DEVICE


def missing() -> list[str]:
    """Packages whose files are not there."""
    there = {
        "mesa-vulkan-drivers": bool(manifests()),
        "libvulkan-dev": Path("/usr/include/vulkan/vulkan.hpp").exists(),
        "glslc": shutil.which("glslc") is not None,
        "spirv-headers": Path("/usr/include/spirv/unified1/spirv.hpp").exists(),
    }
    return [package for package in PACKAGES if not there[package]]


def check_packages(*, may_install: bool) -> None:
    command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    if missing() and may_install:
        subprocess.run(command, check=True)
    if lacking := missing():
        raise SystemExit(f"test_vulkan: {', '.join(lacking)} missing; as root: {' '.join(command)}")


def build() -> Path:
    """Install the package with Vulkan; returns the Python that has it."""
    options = [f"--config-settings=cmake.define.{name}={value}" for name, value in BACKENDS["vulkan"].items()]
    return install("vulkan", "vulkan", *options)


def run_tests(python: Path, layers: str, tests: list[str]) -> int:
    sys.stdout.write(f"layers on the device: {layers}\n")
    sys.stdout.flush()
    manifest = manifests()[0]
    environment = os.environ | device(manifest) | {"PYTHONSAFEPATH": "1", "PYLLMCANCEL_TEST_LAYERS": layers}
    environment["VK_ICD_FILENAMES"] = str(manifest)
    command = [str(python), "-m", "pytest", "-n0", "-m", "", f"--timeout={TIMEOUT}", *tests]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install missing packages of Debian's, as root")
    parser.add_argument("--layers", choices=LAYERS, action="append", help="only this round")
    parser.add_argument("tests", nargs="*", default=TESTS, help=f"for pytest (default: {' '.join(TESTS)})")
    arguments = parser.parse_args()
    check_packages(may_install=arguments.install)
    python = build()
    for layers in arguments.layers or LAYERS:
        if status := run_tests(python, layers, list(arguments.tests)):
            return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
