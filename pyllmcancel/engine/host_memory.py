"""The check that a model and its context fit into the memory of this machine or container, before they are loaded."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.embeddings.workload import pooling_of
from pyllmcancel.engine.cell_layout import MAX_CHOSEN, cell_bytes, cell_layout
from pyllmcancel.errors import PlacementError
from pyllmcancel.parts import files_of
from pyllmcancel.placement import gib

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.engine")

# Quantizations that are often published, and their bits for each weight in a model of several billion.
BITS = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q3_K_M": 3.9, "Q2_K": 3.4}
CGROUPS = Path("/sys/fs/cgroup")
CELLS_STEP = 256  # llama.cpp rounds contexts to it
# The share of the available memory that a file must have for its context to be measured too, if nobody chose the
# context. To read the file's header takes up to half a second.
MEASURED_SHARE = 0.25


class Memory(NamedTuple):
    """Bytes of memory: all of it, and those that can be had now, caches of files included."""

    total: int
    available: int


def check_host_memory(path: Path, config: EngineConfig, native: Any) -> None:
    """Compare a model that no device computes with the available memory.

    The file stands for its weights. A mapped file that is larger could be served, but each token would read it from
    the disk, and weights that are repacked for the CPU are copied into memory.

    PlacementError, which says what would fit, if the file is larger than the memory, or leaves none for the context
    that was asked for. A context that nobody asked for is only warned of: its cells take memory when they are used.
    """
    memory = available_memory()
    size = file_size(path)
    if not config.placement.fit or memory is None:
        return
    beside = beside_model(config)
    if beside > memory.available:
        raise PlacementError(
            f"{config.mmproj} and --media-cache-mib do not fit into memory: they take {gib(beside)}, and"
            f" {gib(memory.available)} of {gib(memory.total)} are available. With --fit off nothing is measured"
        )
    memory = memory._replace(available=memory.available - beside)
    if size <= memory.available and not config.ctx_size and size < MEASURED_SHARE * memory.available:
        return
    sketch = native.Model.load(path, placement=config.placement, without_weights=True)
    have = f"{gib(memory.available)} of {gib(memory.total)} are available"
    if size > memory.available:
        raise PlacementError(
            f"{path} does not fit into memory: it has {gib(size)}, and {have}."
            f" {fitting(sketch.n_params, memory.available)}. With --fit off nothing is measured"
        )
    need = ContextNeed.of(sketch, config)
    if need is None or size + need.cells + need.buffers <= memory.available:
        return
    parts = f"weights {gib(size)}, cells {gib(need.cells)}, buffers {gib(need.buffers)}"
    n_fit = need.most_tokens(memory.available - size)
    fits = f"--ctx-size {n_fit} would fit" if n_fit else fitting(sketch.n_params, memory.available)
    if config.ctx_size:
        told = f"{path} with --ctx-size {config.ctx_size} does not fit into memory"
        raise PlacementError(f"{told}: {parts}, and {have}. {fits}. With --fit off nothing is measured")
    logger.warning("memory may run out when all cells are used: %s, and %s. %s", parts, have, fits)


def beside_model(config: EngineConfig) -> int:
    """Return the bytes of a projector and of the pictures that are kept; 0 without a projector."""
    return 0 if config.mmproj is None else file_size(config.mmproj) + (config.media_cache_mib << 20)


def check_memory_of_both(path: Path, model: Model, draft: Model, config: EngineConfig) -> None:
    """Compare a model and its draft model, each with its cells, with the available memory, before both are loaded.
    `path` is the model's file, and both models are without their weights. Errors and warnings are those of
    `check_host_memory`.
    """
    memory = available_memory()
    own = config.of_draft_model()
    if not config.placement.fit or memory is None or own.model is None:
        return
    sizes = [file_size(path), file_size(own.model)]
    # The draft model's context has as many cells as the model's, whatever the draft model was trained with.
    n_cells = cell_layout(model, config).n_cells
    needs = [ContextNeed.of(model, config), ContextNeed.of(draft, own, n_cells=n_cells)]
    in_use = sum(need.cells + need.buffers for need in needs if need is not None)
    if sum(sizes) + in_use <= memory.available:
        return
    told = (
        f"{path} ({gib(sizes[0])}) and the draft model {own.model} ({gib(sizes[1])}) with cells and buffers of"
        f" {gib(in_use)} do not fit into memory together: {gib(memory.available)} of {gib(memory.total)} are available."
        " A smaller --ctx-size or draft model takes less. With --fit off nothing is measured"
    )
    if sum(sizes) > memory.available or config.ctx_size:
        raise PlacementError(told)
    logger.warning("memory may run out when all cells are used: %s", told)


class ContextNeed(NamedTuple):
    """The memory that a context takes beside the weights, as far as the file's header says."""

    tokens: int  # the context's size, as ``--ctx-size`` has it
    cells: int  # bytes of all cells, which are taken when the cells are used
    buffers: int  # bytes of the largest buffer: a step's scores of all tokens of the vocabulary

    @classmethod
    def of(cls, model: Model, config: EngineConfig, *, n_cells: int | None = None) -> ContextNeed | None:
        """Return the need of a model without its weights, by default with the cells that the configuration gives it.

        None if the header does not say it: for models that pool, and those whose layers do not all keep every token,
        as with sliding windows.
        """
        if not model.can_divide_cells or model.n_swa:
            return None
        if pooling_of(model, config.pooling, required=config.embeddings) is not None:
            return None
        tokens = config.ctx_size or min(model.n_ctx_train, MAX_CHOSEN)
        n_cells = n_cells or cell_layout(model, config).n_cells
        cells = n_cells * cell_bytes(model.metadata, model.n_layer, config)
        return cls(tokens, int(cells), model.n_vocab * config.step_tokens() * 4)

    def most_tokens(self, available: int) -> int:
        """Return the largest ``--ctx-size`` whose cells fit beside the buffers; 0 if none does."""
        fit = int((available - self.buffers) / (self.cells / self.tokens)) if self.cells else 0
        return max(0, fit - fit % CELLS_STEP)


def fitting(n_params: int, available: int) -> str:
    """Return a sentence about models that would fit."""
    names = [name for name, bits in BITS.items() if n_params * bits / 8 <= available]
    if names:
        return f"This model would fit as {names[0]}, with {gib(int(n_params * BITS[names[0]] / 8))}"
    billions = available * 8 / BITS["Q4_K_M"] / 1e9
    return f"No usual quantization of this model would fit; a model of {billions:.1f} billion weights as Q4_K_M would"


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
