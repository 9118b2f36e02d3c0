"""The placement of a model: layers, devices and their shares, under llama-server's names. Values and their checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pyllmcancel.errors import UsageError

SplitMode = Literal["none", "layer", "row", "tensor"]
SPLIT_MODES: dict[str, int] = {"none": 0, "layer": 1, "row": 2, "tensor": 3}  # llama.cpp's numbers

# llama.cpp's patterns (common/common.h): the experts of all layers or, with a block's number, of one layer; and the
# same for models without experts.
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
FEED_FORWARD = r"\.ffn_(up|down|gate)\."
CPU = "CPU"  # the buffer type of plain memory, and the device
GIB = 1 << 30
MAX_LAYERS = (1 << 31) - 1  # people write 99999 for "all"
MAX_BLOCKS = 1024  # blocks with patterns of their own; llama.cpp's models have 512 at most
MAX_MIB = 1 << 30


class Device(NamedTuple):
    """A device that can compute beside the CPU.

    `total` and `free` are bytes; `preferred` is True if it is used by default. An `accelerator` has no memory of its
    own, takes no layers, and helps the CPU in any case.
    """

    name: str
    description: str
    back_end: str
    total: int
    free: int
    preferred: bool
    accelerator: bool = False


class DeviceUse(NamedTuple):
    """The memory of one device that a model and its context would take, in bytes."""

    name: str
    total: int
    free: int
    weights: int
    cells: int
    buffers: int

    @property
    def taken(self) -> int:
        return self.weights + self.cells + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of weights, cells and computation. Without a device everything is on the CPU.

    Attributes
    ----------
    n_gpu_layers
        The number of layers on devices, counted from the last, the output layer included; ``all``, or ``auto``: as many
        as fit.
    devices
        The names of devices; empty: no device. None is llama.cpp's default: all GPUs or, if there is none, integrated
        ones.
    split_mode
        ``layer``: each of several devices has layers of its own. ``row``: each has rows of all weights. ``none``:
        everything is on `main_gpu`. ``tensor``: as ``row``, and cells, too; experimental in llama.cpp.
    tensor_split
        Each device's share, in any unit; in proportion to free memory if empty.
    main_gpu
        For ``none`` and ``row``: the number of the device, counted from 0.
    override_tensors
        Regular expressions that match names of tensors, each with a buffer type; the first match counts.
    cpu_moe, n_cpu_moe, n_cpu_ffn
        The CPU keeps the experts of all layers, those of the first layers, or the first layers' feed-forward weights.
    kv_offload
        True if the cells of an offloaded layer, and its attention, are on its device.
    op_offload
        True if a device may compute large batches whose weights are in the CPU's memory.
    fit
        True if memory is measured before loading: ``auto`` uses what fits, and a placement that does not fit is an
        error.
    fit_target
        The MiB that ``auto`` leaves free on each device; a single number is for all.
    """

    n_gpu_layers: int | Literal["auto", "all"] = "auto"
    devices: tuple[str, ...] | None = None
    split_mode: SplitMode = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    override_tensors: tuple[tuple[str, str], ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    kv_offload: bool = True
    op_offload: bool = True
    fit: bool = True
    fit_target: tuple[int, ...] = (1024,)

    def last_layers(self) -> int:
        """The limit of offloaded layers; -1 for all."""
        return self.n_gpu_layers if isinstance(self.n_gpu_layers, int) else -1

    def overrides(self) -> tuple[tuple[str, str], ...]:
        """Return all patterns of tensors and their buffer types, in the order in which they count."""
        found = list(self.override_tensors)
        found += [(EXPERTS, CPU)] if self.cpu_moe else []
        found += [(rf"blk\.{layer}{EXPERTS}", CPU) for layer in range(min(self.n_cpu_moe, MAX_BLOCKS))]
        found += [(rf"blk\.{layer}{FEED_FORWARD}", CPU) for layer in range(min(self.n_cpu_ffn, MAX_BLOCKS))]
        return tuple(found)

    def used(self, there: Sequence[Device]) -> list[Device]:
        """Return the devices that layers may go to; UsageError if a device that is named is not `there`."""
        if self.devices is None:
            found = [device for device in there if device.preferred]
        else:
            by_name = {device.name: device for device in there}
            if unknown := [name for name in self.devices if name not in by_name]:
                raise UsageError(f"there is no device {unknown[0]}; there is {', '.join(by_name) or NO_DEVICE}")
            found = [by_name[name] for name in self.devices]
        if self.split_mode == "none" and 0 <= self.main_gpu < len(found):
            return [found[self.main_gpu]]
        return found

    def check(self, there: Sequence[Device], buffer_types: Sequence[str]) -> None:
        """Raise UsageError if the placement names a device that is not `there`, contradicts itself, or has impossible
        shares.
        """
        self._check_alone()
        several = Placement(devices=self.devices).used(there)
        if self.main_gpu and self.main_gpu >= len(several):
            raise UsageError(f"--main-gpu {self.main_gpu}, counted from 0, is none of: {listed(several)}")
        if self.tensor_split and len(self.tensor_split) != len(several):
            raise UsageError(f"--tensor-split has {len(self.tensor_split)} shares, for {listed(several)}")
        if self.split_mode == "tensor" and not several:
            raise UsageError(f"--split-mode tensor needs a device: there is {NO_DEVICE}")
        for pattern, buffer_type in self.override_tensors:
            if buffer_type not in buffer_types:
                there_are = ", ".join(buffer_types)
                raise UsageError(
                    f"--override-tensor {pattern}: there is no buffer type {buffer_type}; there are {there_are}"
                )

    def _check_alone(self) -> None:
        """Raise UsageError for options that are wrong on any machine."""
        names = self.devices or ()
        if len(set(names)) < len(names):
            raise UsageError(f"--device names a device twice: {','.join(names)}")
        if self.split_mode not in SPLIT_MODES:
            raise UsageError(f"split_mode must be one of {', '.join(SPLIT_MODES)}, not {self.split_mode!r}")
        if isinstance(self.n_gpu_layers, int) and not 0 <= self.n_gpu_layers <= MAX_LAYERS:
            raise UsageError(f"--n-gpu-layers must not be negative, nor above {MAX_LAYERS:,}: {self.n_gpu_layers}")
        if self.n_cpu_moe < 0 or self.n_cpu_ffn < 0:
            raise UsageError("--n-cpu-moe and --n-cpu-ffn must not be negative")
        if not self.fit_target or any(not 0 <= mib <= MAX_MIB for mib in self.fit_target):
            raise UsageError(f"--fit-target must be MiB of each device, none negative, nor above {MAX_MIB:,}")
        if self.main_gpu < 0:
            raise UsageError(f"--main-gpu must not be negative, not {self.main_gpu}")
        if any(not share >= 0.0 or math.isinf(share) for share in self.tensor_split):  # NaN is refused too
            raise UsageError("the shares of --tensor-split must be numbers, none of them negative")
        if self.tensor_split and not sum(self.tensor_split):
            raise UsageError("the shares of --tensor-split are all 0")
        if self.tensor_split and self.split_mode == "none":
            raise UsageError("--tensor-split shares a model among devices, but --split-mode none uses one")
        if self.devices == () and (self.n_gpu_layers not in ("auto", 0) or self.tensor_split):
            raise UsageError("--device none leaves no device for --n-gpu-layers or --tensor-split")
        if self.cpu_moe and self.n_cpu_moe:
            raise UsageError("--cpu-moe is for all layers and --n-cpu-moe for some: give only one of them")


NO_DEVICE = "none (pyllmcancel serve --list-devices)"


def listed(devices: Sequence[Device]) -> str:
    return ", ".join(device.name for device in devices) or "no device"


def gib(n_bytes: int) -> str:
    """Return bytes in readable form: ``1.5 GiB``, ``300 MiB``."""
    return f"{n_bytes / GIB:.1f} GiB" if n_bytes >= GIB else f"{n_bytes / (1 << 20):.0f} MiB"


def described(device: Device) -> str:
    """Return a line of ``--list-devices``."""
    if device.accelerator:
        return f"{device.name}: {device.description}, {device.back_end}, used beside the CPU"
    return (
        f"{device.name}: {device.description}, {device.back_end}, {gib(device.total)}, {gib(device.free)} free"
        f"{'' if device.preferred else ', not used unless it is named'}"
    )
