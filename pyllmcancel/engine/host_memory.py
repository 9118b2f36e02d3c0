"""The check that a model's weights fit into the memory of this machine or container, before they are loaded."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pyllmcancel.errors import PlacementError
from pyllmcancel.placement import Placement, gib

PART = re.compile(r"(?P<whole>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# Quantizations that are often published, and their bits for each weight in a model of several billion.
BITS = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q3_K_M": 3.9, "Q2_K": 3.4}
CGROUPS = Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """Bytes of memory: all of it, and those that can be had now, caches of files included."""

    total: int
    available: int


def check_host_memory(path: Path, placement: Placement, native: Any) -> None:
    """Raise PlacementError, which says what would fit, if the file is larger than the available memory.

    The file stands for its weights. A mapped file that is larger could be served, but each token would read it from
    the disk, and weights that are repacked for the CPU are copied into memory.
    """
    memory = available_memory()
    size = file_size(path)
    if not placement.fit or memory is None or size <= memory.available:
        return
    n_params = native.Model.load(path, placement=placement, without_weights=True).n_params
    raise PlacementError(
        f"{path} does not fit into memory: it has {gib(size)}, and {gib(memory.available)} of {gib(memory.total)} are"
        " available."
        f" {fitting(n_params, memory.available)}. With --fit off nothing is measured"
    )


def fitting(n_params: int, available: int) -> str:
    """Return a sentence about models that would fit."""
    names = [name for name, bits in BITS.items() if n_params * bits / 8 <= available]
    if names:
        return f"This model would fit as {names[0]}, with {gib(int(n_params * BITS[names[0]] / 8))}"
    billions = available * 8 / BITS["Q4_K_M"] / 1e9
    return f"No usual quantization of this model would fit; a model of {billions:.1f} billion weights as Q4_K_M would"


def files_of(path: Path) -> list[Path]:
    """Return the files of a model: one, or all parts."""
    part = PART.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part["count"])
    return [path.with_name(f"{part['whole']}-{i:05}-of-{part['count']}.gguf") for i in range(1, count + 1)]


def file_size(path: Path) -> int:
    """Return the bytes of a model's files; a missing part counts nothing, and llama.cpp reports it."""
    return sum(file.stat().st_size for file in files_of(path) if file.is_file())


def available_memory() -> Memory | None:
    """Return the memory of the machine, within the limits of this process's control groups; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        memory = Memory(*(int(told[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable")))
    except (OSError, KeyError, ValueError):
        return None
    for limit in control_group_limits():
        memory = Memory(min(memory.total, limit.total), min(memory.available, limit.available))
    return memory


def control_group_limits(cgroups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[Memory]:
    """Return the limits of the control groups (version 2) that this process is in."""
    try:
        name = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = cgroups / name.lstrip("/")
    found = [limit_of(one) for one in (group, *group.parents) if one.is_relative_to(cgroups)]
    return [limit for limit in found if limit is not None]


def limit_of(group: Path) -> Memory | None:
    """Return the limit of one control group; None if it has none. Cached files do not count as used."""
    try:
        limit = int((group / "memory.max").read_text())  # "max" is no number
        used = int((group / "memory.current").read_text())
        told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = int(told.get("inactive_file", 0)) + int(told.get("active_file", 0))
    except (OSError, ValueError):
        return None
    return Memory(limit, max(0, limit - max(0, used - cached)))
