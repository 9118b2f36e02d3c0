"""The options of ``serve`` that say where a model is computed, as llama-server has them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal

from pyllmcancel.cli.options import add_list, add_option, add_switch, natural
from pyllmcancel.engine.engine import compiled_module, devices
from pyllmcancel.engine.fitting import resolved
from pyllmcancel.placement import SPLIT_MODES, Placement, described

DEFAULT = Placement()
NO_DEVICES = """\
no devices: this build computes on the CPU alone, or finds no driver
docs/building.md says how to build for GPUs
"""


def add_placement_options(group: argparse._ArgumentGroup) -> None:
    text = "the last so many layers are on devices; all; or auto: as many as fit, none without a device"
    add_option(group, "n-gpu-layers", layers, DEFAULT.n_gpu_layers, text, also=("-ngl", "--gpu-layers"))
    text = "which devices, with commas; none: the CPU alone; without it all GPUs"
    add_option(group, "device", device_names, None, text, also=("-dev",), metavar="NAMES")
    listing: Any = {"action": ListDevices, "nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    group.add_argument("--list-devices", help="list them, with their memory, and exit", **listing)
    text = "how several devices share a model: by layers, by rows, all of it on --main-gpu, or by tensors"
    modes = tuple(SPLIT_MODES)
    add_option(group, "split-mode", str, DEFAULT.split_mode, text, also=("-sm",), choices=modes)
    text = "each device's share, with commas; without it by free memory"
    add_option(group, "tensor-split", shares, "", text, also=("-ts",), metavar="N,N")
    text = "number of the device that --split-mode none takes, from 0"
    add_option(group, "main-gpu", natural, DEFAULT.main_gpu, text, also=("-mg",))
    text = "keep tensors that a regular expression finds somewhere else: CPU, or a device; may be repeated"
    add_list(group, "override-tensor", override, text, metavar="PATTERN=TYPE", also=("-ot",))
    add_switch(group, "cpu-moe", DEFAULT.cpu_moe, "keep the experts of all layers on the CPU", also=("-cmoe",))
    text = "those of the first so many layers"
    add_option(group, "n-cpu-moe", natural, DEFAULT.n_cpu_moe, text, also=("-ncmoe",))
    text = "keep the feed-forward weights of the first so many layers on the CPU, in a model without experts"
    add_option(group, "n-cpu-ffn", natural, DEFAULT.n_cpu_ffn, text, also=("-ncffn",))
    text = "the cells of a layer are where it is; otherwise in the CPU's memory"
    add_switch(group, "kv-offload", DEFAULT.kv_offload, text, also=("-kvo",))
    text = "a device may compute large batches with weights that the CPU keeps"
    add_switch(group, "op-offload", DEFAULT.op_offload, text)
    text = "measure before loading: auto takes what fits, and what is asked for and does not fit is an error"
    add_option(group, "fit", on_or_off, "on", text, also=("-fit",), metavar="on|off")
    text = "MiB of each device that auto leaves free: one number, or one for each with commas"
    target = str(DEFAULT.fit_target[0])
    add_option(group, "fit-target", margins, target, text, also=("-fitt",), metavar="MIB,MIB")


def placement_of(arguments: argparse.Namespace) -> Placement:
    """Return the placement that the options describe."""
    options = {name: getattr(arguments, name) for name in Placement.__slots__ if hasattr(arguments, name)}
    return Placement(devices=arguments.device, override_tensors=arguments.override_tensor, **options)


def check_placement(placement: Placement) -> None:
    """Check that the placement makes sense on this machine.

    UsageError if it contradicts itself, or names something that is not there.
    """
    if placement != DEFAULT:  # otherwise there is nothing to look up, and the loading thread starts the back ends
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
    """A number of layers, or llama-server's words for as many as fit, and for all."""
    match text.strip():
        case "auto" | "-1":
            return "auto"
        case "all" | "-2":
            return "all"
        case number:
            return natural(number)


def device_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if names == ("none",):
        return ()
    if not all(names) or "none" in names:
        raise argparse.ArgumentTypeError(f"must be names with commas, or none, not {text!r}")
    return names


def shares(text: str) -> tuple[float, ...]:
    """Numbers with commas, or slashes, as llama-server has it."""
    return tuple(map(float, re.split("[,/]", text))) if text else ()


def margins(text: str) -> tuple[int, ...]:
    return tuple(map(natural, re.split("[,/]", text)))


def override(text: str) -> tuple[str, str]:
    pattern, separator, buffer_type = text.partition("=")
    if not separator or not pattern or not buffer_type:
        raise argparse.ArgumentTypeError(f"must be PATTERN=TYPE, not {text!r}")
    return pattern, buffer_type


def on_or_off(text: str) -> bool:
    """llama-server's words for both."""
    words = {"on": True, "enabled": True, "true": True, "1": True}
    words |= {"off": False, "disabled": False, "false": False, "0": False}
    if text not in words:
        raise argparse.ArgumentTypeError(f"must be on or off, not {text!r}")
    return words[text]
