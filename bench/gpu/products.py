"""The builds that a plan measures: the package's wheel, llama-server and the probe, of one source.

They are kept in archives of at most 15 MiB each, so that they can be taken from a machine that is given back. Where the
archives are, nothing is built again.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from bench.environment import make_environment
from bench.gpu.ledger import TimeOverError
from bench.native.probe_module import PATH as PROBE
from bench.peers.programs import ROOT

BUILD = ROOT / "build" / "gpu"
OBJECTS = BUILD / "objects"
PART = 15 << 20  # bytes
ARCHIVE = "products.tar.xz"
# Programs that are built beside the wheel, by their targets.
PROGRAMS = {"llama-server": OBJECTS / "bin" / "llama-server", "pyllmcancel_probe": PROBE}
KIND = "backend"  # a file with the name of the back end; written last
# Definitions for CMake. NO_VMM: no library of the driver is linked, so the machine that builds needs no GPU. Vulkan's
# headers are not checked: Debian 12's lack a few lines, which tools/vulkan_headers adds.
BACKENDS = {
    "cuda": {"PYLLMCANCEL_BACKEND": "cuda", "GGML_CUDA_NO_VMM": "ON"},
    "vulkan": {"GGML_VULKAN": "ON", "CMAKE_CXX_FLAGS": f"-I{ROOT / 'tools' / 'vulkan_headers'}"},
}


def provide(folder: Path, backend: str, arch: str, seconds: float) -> None:
    """Have this process's servers be those of the plan: from the archives in `folder`, else built.

    A build that is cut goes on where it was, as long as the machine keeps ``build/gpu``. What a step makes has its name
    only when it is complete, so a step that was cut is done again. `arch` is the kind of GPU, for CUDA.
    """
    products = BUILD / "products"
    if not (products / KIND).exists() and not unpack(folder, products):
        build(products, backend, arch, seconds)
    if (found := (products / KIND).read_text()) != backend:
        raise SystemExit(f"{products} was built with {found}, not {backend}: remove {BUILD}, and use another --out")
    if not archives(folder):
        pack(products, folder)
    if not (products / "site").exists():
        install(products)
    # An editable install of the environment that runs the plan would go before the wheel.
    os.environ["BENCH_PYTHON"] = str(make_environment(products / "venv"))
    os.environ["PYTHONPATH"] = str(products / "site")
    os.environ["LLAMA_SERVER"] = str(products / "llama-server")
    os.environ["BENCH_PROBE"] = str(products / PROBE.name)


def build(products: Path, backend: str, arch: str, seconds: float) -> None:
    products.mkdir(parents=True, exist_ok=True)
    options = BACKENDS[backend] | {"PYLLMCANCEL_LLAMA_TOOLS": "ON", "PYLLMCANCEL_PROBE": "ON"}
    if backend == "cuda":
        options["CMAKE_CUDA_ARCHITECTURES"] = arch
    defines = [f"--config-settings=cmake.define.{name}={value}" for name, value in options.items()]
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(products)]
    programs = ["cmake", "--build", str(OBJECTS), "--parallel", str(os.cpu_count()), "--target", *PROGRAMS]
    ends = time.monotonic() + seconds
    for command in (
        [
            *wheel,
            f"--config-settings=build-dir={OBJECTS}",
            "--config-settings=build.targets=_native",
            *defines,
            str(ROOT),
        ],
        programs,
    ):
        run_until(ends, command)
    for path in PROGRAMS.values():
        subprocess.run(["strip", "-o", str(products / path.name), str(path)], check=True)
    (products / KIND).write_text(backend)


def run_until(ends: float, command: list[str]) -> None:
    """Run a command, and end it with everything that it started when the time is over: the compilers, too."""
    process = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
    try:
        status = process.wait(max(0.0, ends - time.monotonic()))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeOverError("the build is not complete; run again, and it goes on") from None
        raise
    if status != 0:
        raise SystemExit(f"{command[0]} ended with status {status}")


def install(products: Path) -> None:
    (wheel,) = products.glob("*.whl")
    partial = products / "site.partial"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--upgrade"]
    subprocess.run([*command, "--target", str(partial), str(wheel)], check=True)
    partial.replace(products / "site")


def pack(products: Path, folder: Path) -> None:
    """Write the products into archives."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for path in products.iterdir():
            if path.is_file():
                archive.add(path, path.name)
    whole = data.getvalue()
    numbered = list(enumerate(range(0, len(whole), PART)))
    for number, begin in reversed(numbered):  # the first one last: it says that the others are there
        partial = folder / "archive.partial"
        partial.write_bytes(whole[begin : begin + PART])
        partial.replace(folder / f"{ARCHIVE}.{number:02}")


def archives(folder: Path) -> list[Path]:
    """All archives, or none if not all of them were written."""
    found = sorted(folder.glob(f"{ARCHIVE}.*"))
    return found if found and found[0].suffix == ".00" else []


def unpack(folder: Path, products: Path) -> bool:
    """Return whether there were archives."""
    parts = archives(folder)
    if not parts:
        return False
    partial = products.with_name("unpacking")
    for folder_of_another_run in (partial, products):
        shutil.rmtree(folder_of_another_run, ignore_errors=True)
    partial.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts)), mode="r:xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2, Debian 12's
        archive.extractall(partial)
    partial.replace(products)
    return True
