"""The options of ``serve`` that say where a model is computed, named as in llama-server."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal

from pyllmcancel.cli.options import add_list, add_option, add_switch, natural, number
from pyllmcancel.engine.compiled import compiled_module, devices
from pyllmcancel.engine.fitting import resolved
from pyllmcancel.placement import SPLIT_MODES, Placement, described

DEFAULT = Placement()
NO_DEVICES = """\
no devices: this build computes on the CPU alone, or finds no driver
docs/building.md explains how to build for GPUs
"""


def add_placement_options(group: argparse._ArgumentGroup) -> None:
    text = "number of layers to put on devices, the last ones first; all; or auto: as many as fit, 0 without a device"
    add_option(group, "n-gpu-layers", layers, DEFAULT.n_gpu_layers, text, also=("-ngl", "--gpu-layers"))
    text = "devices to use, separated by commas; none: the CPU alone [all GPUs]"
    add_option(group, "device", device_names, None, text, also=("-dev",), metavar="NAMES")
    listing: Any = {"action": ListDevices, "nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    group.add_argument("--list-devices", help="list the devices with their memory, and exit", **listing)
    text = "how several devices share a model: by layers, by rows, by tensors, or not (none: all on --main-gpu)"
    modes = tuple(SPLIT_MODES)
    add_option(group, "split-mode", str, DEFAULT.split_mode, text, also=("-sm",), choices=modes)
    text = "each device's share, separated by commas [in proportion to free memory]"
    add_option(group, "tensor-split", shares, "", text, also=("-ts",), metavar="N,N")
    text = "number of the device that --split-mode none uses, from 0"
    add_option(group, "main-gpu", natural, DEFAULT.main_gpu, text, also=("-mg",))
    text = "put the tensors that match a regular expression on the CPU or on a device; may be repeated"
    add_list(group, "override-tensor", override, text, metavar="PATTERN=TYPE", also=("-ot",))
    add_switch(group, "cpu-moe", DEFAULT.cpu_moe, "keep the experts of all layers on the CPU", also=("-cmoe",))
    text = "keep the experts of the first N layers on the CPU"
    add_option(group, "n-cpu-moe", natural, DEFAULT.n_cpu_moe, text, also=("-ncmoe",))
    text = "keep the feed-forward weights of the first N layers on the CPU, in a model without experts"
    add_option(group, "n-cpu-ffn", natural, DEFAULT.n_cpu_ffn, text, also=("-ncffn",))
    text = "keep each layer's cells on the layer's device; without: in the CPU's memory"
    add_switch(group, "kv-offload", DEFAULT.kv_offload, text, also=("-kvo",))
    text = "let a device compute large batches whose weights are in the CPU's memory"
    add_switch(group, "op-offload", DEFAULT.op_offload, text)
    text = "measure the memory before loading: auto uses what fits, and a placement that does not fit is an error"
    add_option(group, "fit", on_or_off, "on", text, also=("-fit",), metavar="on|off")
    text = "MiB that auto leaves free on each device: one number, or one per device, separated by commas"
    target = str(DEFAULT.fit_target[0])
    add_option(group, "fit-target", margins, target, text, also=("-fitt",), metavar="MIB,MIB")
    text = "print the bytes that the model's weights, cells and buffers would take, as JSON, and exit"
    group.add_argument("--fit-print", help=text, action="store_true")


def placement_of(arguments: argparse.Namespace) -> Placement:
    """Return the placement that the options describe."""
    options = {name: getattr(arguments, name) for name in Placement.__slots__ if hasattr(arguments, name)}
    return Placement(devices=arguments.device, override_tensors=arguments.override_tensor, **options)


def check_placement(placement: Placement) -> None:
    """Check that the placement makes sense on this machine.

    Raises UsageError if the placement contradicts itself, or names something that is not there.
    """
    if placement != DEFAULT:  # The default needs no look-up here: the loading thread starts the back ends.
        resolved(placement, compiled_module())


class ListDevices(argparse.Action):
    """Prints the devices, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        _values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        found = devices()
        sys.stdout.write("".join(f"{described(device)}\n" for device in found) or NO_DEVICES)
        parser.exit()


def layers(text: str) -> int | Literal["auto", "all"]:
    """Convert a number of layers, or llama-server's words for all of them and for as many as fit."""
    match text.strip():
        case "auto" | "-1":
            return "auto"
        case "all" | "-2":
            return "all"
        case count if count.lstrip("-").isdecimal():
            return natural(count)
        case other:
            raise argparse.ArgumentTypeError(f"must be a number of layers, all or auto, not {other!r}")


def device_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if names == ("none",):
        return ()
    if not all(names) or "none" in names:
        raise argparse.ArgumentTypeError(f"must be names separated by commas, or none, not {text!r}")
    return names


def shares(text: str) -> tuple[float, ...]:
    """Convert numbers separated by commas or, as llama-server also allows, by slashes."""
    return tuple(map(number, re.split("[,/]", text))) if text else ()


def margins(text: str) -> tuple[int, ...]:
    return tuple(map(natural, re.split("[,/]", text)))


def override(text: str) -> tuple[str, str]:
    pattern, separator, buffer_type = text.partition("=")
    if not separator or not pattern or not buffer_type:
        raise argparse.ArgumentTypeError(f"must be PATTERN=TYPE, not {text!r}")
    return pattern, buffer_type


def on_or_off(text: str) -> bool:
    """Convert llama-server's words for on and off."""
    words = {"on": True, "enabled": True, "true": True, "1": True}
    words |= {"off": False, "disabled": False, "false": False, "0": False}
    if text not in words:
        raise argparse.ArgumentTypeError(f"must be on or off, not {text!r}")
    return words[text]
