"""The builds that a plan measures: the package's wheel and llama-server, of one source and one tree of objects.

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

from bench.gpu.ledger import TimeOverError
from bench.peers.programs import ROOT

BUILD = ROOT / "build" / "gpu"
PART = 15 << 20  # bytes
ARCHIVE = "products.tar.xz"
SERVER = "llama-server"
# NO_VMM: no library of the driver is linked, so the machine that builds needs no GPU.
CUDA = {"PYLLMCANCEL_BACKEND": "cuda", "GGML_CUDA_NO_VMM": "ON"}


def provide(folder: Path, options: dict[str, str], seconds: float) -> None:
    """Have this process's servers be those of the plan: from the archives in `folder`, else built.

    A build that is cut goes on where it was, as long as the machine keeps ``build/gpu``. What a step makes has its name
    only when it is complete, so a step that was cut is done again.
    """
    products = BUILD / "products"
    if not (products / SERVER).exists() and not unpack(folder, products):
        build(products, options, seconds)
    if not archives(folder):
        pack(products, folder)
    if not (products / "site").exists():
        install(products)
    os.environ["PYTHONPATH"] = str(products / "site")
    os.environ["LLAMA_SERVER"] = str(products / SERVER)


def build(products: Path, options: dict[str, str], seconds: float) -> None:
    tree = BUILD / "objects"
    products.mkdir(parents=True, exist_ok=True)
    defines = [
        f"-Ccmake.define.{name}={value}" for name, value in (options | {"PYLLMCANCEL_LLAMA_TOOLS": "ON"}).items()
    ]
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(products)]
    server = ["cmake", "--build", str(tree), "--parallel", str(os.cpu_count()), "--target", SERVER]
    ends = time.monotonic() + seconds
    for command in ([*wheel, f"-Cbuild-dir={tree}", "-Cbuild.targets=_native", *defines, str(ROOT)], server):
        run_until(ends, command)
    stripped = products / "stripped"
    subprocess.run(["strip", "-o", str(stripped), str(tree / "bin" / SERVER)], check=True)
    stripped.replace(products / SERVER)


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
        for path in (*products.glob("*.whl"), products / SERVER):
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
        archive.extractall(partial, filter="data")
    partial.replace(products)
    return True
