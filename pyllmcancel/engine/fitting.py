"""The choice of a model's placement before it is loaded, and the check that the placement fits.

Without a device, or if no layer is to go to one, the file's size and the context's cells are compared with the memory.
Otherwise llama.cpp loads the model without its weights, makes the context without its cells, and reports the memory
that both would take.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.engine.cell_layout import options_for
from pyllmcancel.engine.host_memory import CELLS_STEP, check_host_memory, file_size
from pyllmcancel.errors import LoadCancelled, ModelLoadError, PlacementError
from pyllmcancel.models import packaged_model_path
from pyllmcancel.placement import CPU, Device, DeviceUse, Placement, gib

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.engine")

# The use of each device by a placement with a number of cells.
Measure = Callable[[Placement, int], Sequence[DeviceUse]]


def placed(config: EngineConfig, native: Any, progress: Callable[[float], bool | None] | None = None) -> EngineConfig:
    """Return `config` with a placement that fits, before anything is loaded. `progress`, as for `Engine.load`, is
    called before each measurement.

    Raises UsageError, PlacementError, ModelLoadError, LoadCancelled or ContextError.
    """
    asked = config.placement
    placement, used = resolved(asked, native)
    if not used:
        if asked.devices is None and asked.n_gpu_layers not in ("auto", 0):
            logger.warning("there is no device: --n-gpu-layers %s is ignored", asked.n_gpu_layers)
        config = replace(config, placement=placement)
        check_host_memory(Path(config.model or packaged_model_path()), config, native)
        return config
    if not placement.fit or placement.split_mode == "tensor":  # llama.cpp cannot measure a split by tensors
        return config
    path = config.model or packaged_model_path()
    check_cancelled(progress)
    sketch = native.Model.load(path, placement=placement, without_weights=True)
    options = options_for(sketch, config)

    def measure(placement: Placement, n_ctx: int) -> Sequence[DeviceUse]:
        check_cancelled(progress)
        uses: Sequence[DeviceUse] = native.memory_use(path, placement, **options | {"n_ctx": n_ctx})
        return uses

    fitted = partial(native.fitted, path, **options)
    reserved = file_size(config.mmproj) if config.mmproj is not None and config.mmproj_offload else 0
    n_layers = sketch.n_layer + 1
    return replace(config, placement=fit(placement, n_layers, measure, options["n_ctx"], fitted, reserved=reserved))


def check_cancelled(progress: Callable[[float], bool | None] | None) -> None:
    if progress is not None and progress(0.0) is False:
        raise LoadCancelled("the load was cancelled while the model's placement was measured")


def resolved(placement: Placement, native: Any) -> tuple[Placement, list[Device]]:
    """Return `placement` after its check, and the devices that get layers, if any; UsageError if the placement is not
    possible on this machine.
    """
    there = native.devices()
    placement.check(there, native.buffer_types() if placement.override_tensors else ())
    for pattern, _ in placement.override_tensors:
        native.check_tensor_pattern(pattern)
    devices = placement.used(there)
    if not devices:
        return replace(placement, n_gpu_layers=0), []
    return placement, [] if placement.n_gpu_layers == 0 else devices


def fit(
    placement: Placement,
    n_layers: int,
    measure: Measure,
    n_ctx: int,
    fitted: Callable[[Placement, list[int]], Placement | None],
    *,
    reserved: int = 0,
) -> Placement:
    """Return `placement` with a number of layers that fits.

    `n_layers` are all of the model's, the output layer included, and `n_ctx` the cells of the context. `measure` says
    what memory a placement would take. `fitted` is llama.cpp's own search: it takes the placement and the bytes that
    each device keeps free, and returns None if it finds nothing. A projector takes `reserved` bytes of the first
    device. PlacementError if the placement names a number of layers, and they do not fit.
    """
    if placement.n_gpu_layers != "auto":
        uses = measure(placement, n_ctx)
        if all(has_room(uses, (reserved, 0))):
            return placement
        raise PlacementError(explain(placement, uses, n_layers, measure, n_ctx))
    margins = [mib << 20 for mib in placement.fit_target]
    if reserved:
        margins = [margins[0] + reserved, *(margins[1:] or margins)]
    if placement.split_mode == "layer" and not placement.tensor_split and not placement.overrides():
        with suppress(ModelLoadError):  # all layers cannot even be measured
            if (found := fitted(placement, margins)) is not None:
                return found
    everything = replace(placement, n_gpu_layers="all")
    if fits(everything, margins, measure, n_ctx):
        return everything
    return replace(placement, n_gpu_layers=most_layers(placement, n_layers, margins, measure, n_ctx))


def fits(placement: Placement, margins: Sequence[int], measure: Measure, n_ctx: int) -> bool:
    """Return whether the placement fits. False if it cannot be measured, as when a buffer is larger than a device can
    address.
    """
    try:
        return all(has_room(measure(placement, n_ctx), margins))
    except ModelLoadError as error:
        logger.warning("%s layers on devices do not fit: %s", placement.n_gpu_layers, error)
        return False


def has_room(uses: Sequence[DeviceUse], margins: Sequence[int]) -> list[bool]:
    """Return whether each device keeps its margin free; the last margin is for all devices that have none of their own.

    A device whose driver reports no memory is assumed to have enough.
    """
    kept = [margins[min(place, len(margins) - 1)] for place in range(len(uses))]
    return [not use.total or use.taken + margin <= use.free for use, margin in zip(uses, kept, strict=True)]


def most_layers(placement: Placement, n_layers: int, margins: Sequence[int], measure: Measure, n_ctx: int) -> int:
    """Return the number of layers that fit, if `n_layers` do not."""

    def exceeds(n: int) -> bool:
        return not fits(replace(placement, n_gpu_layers=n), margins, measure, n_ctx)

    return bisect_left(range(1, n_layers), True, key=exceeds)


def most_cells(placement: Placement, measure: Measure, n_ctx: int) -> int:
    """Return the number of cells, below `n_ctx`, that fit with these layers; 0 if no number does.

    Two measurements show how memory grows with the cells, and a third confirms the result.
    """
    found = n_ctx
    for small, large in zip(measure(placement, CELLS_STEP), measure(placement, n_ctx), strict=True):
        if small.taken > small.free:
            return 0
        if large.taken > large.free:
            share = (small.free - small.taken) / (large.taken - small.taken)
            found = min(found, int(CELLS_STEP + share * (n_ctx - CELLS_STEP)))
    found -= found % CELLS_STEP
    return found if found < n_ctx and all(has_room(measure(placement, found), (0,))) else 0


def explain(placement: Placement, uses: Sequence[DeviceUse], n_layers: int, measure: Measure, n_ctx: int) -> str:
    """Return which device lacks how much memory, and what would fit."""
    lacking = [use for use, fits in zip(uses, has_room(uses, (0,)), strict=True) if not fits]
    parts = [
        f"{use.name} has {gib(use.free)} of {gib(use.total)} free, and {gib(use.taken)} would be needed"
        f" (weights {gib(use.weights)}, cells {gib(use.cells)}, buffers {gib(use.buffers)})"
        for use in lacking
    ]
    asked = placement.last_layers()
    n_fit = most_layers(placement, n_layers if asked < 0 else min(asked, n_layers), (0,), measure, n_ctx)
    n_cells = most_cells(placement, measure, n_ctx)
    fitting = [f"{n_fit} of {n_layers} layers"] + ([f"these layers with --ctx-size {n_cells}"] if n_cells else [])
    told = f"--n-gpu-layers {placement.n_gpu_layers} does not fit: {'; '.join(parts)}"
    return f"{told}. These would fit: {', or '.join(fitting)}. With --fit off nothing is measured"


def summary(layers_by_device: dict[str, int]) -> str:
    """Return how many layers each device has: ``of 29 layers 20 on Vulkan0, 9 on the CPU``."""
    n_layers = sum(layers_by_device.values())
    on_devices = {name: count for name, count in layers_by_device.items() if name != CPU}
    if not on_devices:
        return f"all {n_layers} layers on the CPU"
    told = [f"{count} on {name}" for name, count in on_devices.items()]
    if n_cpu := layers_by_device.get(CPU, 0):
        told.append(f"{n_cpu} on the CPU")
    return f"of {n_layers} layers {', '.join(told)}"
