"""A placement's check against made-up devices, and the patterns of tensors that it stands for."""

import re
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.errors import UsageError
from pyllmcancel.placement import EXPERTS, FEED_FORWARD, Device, Placement

COMMON = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "common" / "common.h"
GPUS = [Device(f"GPU{n}", "a card", "Fake", 8 << 30, 6 << 30, True) for n in range(2)]
INTEGRATED = Device("GPU2", "on the board", "Fake", 4 << 30, 2 << 30, False)
THERE = [*GPUS, INTEGRATED]
BUFFER_TYPES = ["GPU0", "GPU1", "GPU2", "CPU"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["GPU0", "GPU1"]),
        ({"devices": ()}, []),
        ({"devices": ("GPU2", "GPU0")}, ["GPU2", "GPU0"]),
        ({"split_mode": "none"}, ["GPU0"]),
        ({"split_mode": "none", "main_gpu": 1}, ["GPU1"]),
        ({"split_mode": "none", "main_gpu": 1, "devices": ("GPU2", "GPU0")}, ["GPU0"]),
    ],
)
def test_devices_are_those_that_are_named_or_the_preferred_ones(options: dict[str, Any], names: list[str]) -> None:
    placement = Placement(**options)
    placement.check(THERE, BUFFER_TYPES)
    assert [device.name for device in placement.used(THERE)] == names


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"devices": ("GPU7",)}, "there is no device GPU7; there is GPU0, GPU1, GPU2"),
        ({"devices": ("GPU0", "GPU0")}, "names a device twice"),
        ({"main_gpu": 2}, "--main-gpu 2, counted from 0, is none of: GPU0, GPU1"),
        ({"main_gpu": 1, "devices": ("GPU1",)}, "--main-gpu 1, counted from 0, is none of: GPU1"),
        ({"main_gpu": -1}, "must not be negative"),
        ({"tensor_split": (1.0,)}, "has 1 shares, for GPU0, GPU1"),
        ({"tensor_split": (1.0, 1.0, 1.0)}, "has 3 shares, for GPU0, GPU1"),
        ({"tensor_split": (1.0, -1.0)}, "none of them negative"),
        ({"tensor_split": (1.0, float("inf"))}, "must be numbers"),
        ({"tensor_split": (0.0, 0.0)}, "all 0"),
        ({"tensor_split": (1.0, 1.0), "split_mode": "none"}, "uses one"),
        ({"split_mode": "diagonal"}, "must be one of none, layer, row, tensor"),
        ({"n_gpu_layers": -3}, "must not be negative"),
        ({"n_gpu_layers": 1 << 31}, "nor above 2,147,483,647"),
        ({"n_cpu_moe": -1}, "must not be negative"),
        ({"fit_target": ()}, "must be MiB of each device"),
        ({"fit_target": (-1,)}, "none negative"),
        ({"fit_target": (1 << 62,)}, "nor above"),
        ({"devices": (), "n_gpu_layers": "all"}, "leaves no device"),
        ({"devices": (), "split_mode": "tensor"}, "needs a device"),
        ({"cpu_moe": True, "n_cpu_moe": 2}, "give only one"),
        ({"override_tensors": (("exps", "GPU9"),)}, "there is no buffer type GPU9; there are GPU0, GPU1, GPU2, CPU"),
    ],
)
def test_what_makes_no_sense_names_what_there_is(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        Placement(**options).check(THERE, BUFFER_TYPES)


@pytest.mark.parametrize("options", [{"tensor_split": (1.0,)}, {"main_gpu": 1}, {"split_mode": "tensor"}])
def test_without_a_device_there_is_nothing_to_share(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"no device|there is none"):
        Placement(**options).check([], ["CPU"])


def test_a_share_of_zero_leaves_a_device_out() -> None:
    Placement(tensor_split=(0.0, 1.0)).check(THERE, BUFFER_TYPES)


@pytest.mark.parametrize(("n_gpu_layers", "last"), [("auto", -1), ("all", -1), (0, 0), (7, 7)])
def test_layers_are_a_number_or_all(n_gpu_layers: Any, last: int) -> None:
    assert Placement(n_gpu_layers=n_gpu_layers).last_layers() == last


def test_what_is_said_of_tensors_counts_before_what_is_said_of_experts() -> None:
    placement = Placement(override_tensors=(("blk.0.ffn_up_exps", "GPU0"),), n_cpu_moe=2, n_cpu_ffn=1)
    patterns = [pattern for pattern, _ in placement.overrides()]
    assert patterns == ["blk.0.ffn_up_exps", rf"blk\.0{EXPERTS}", rf"blk\.1{EXPERTS}", rf"blk\.0{FEED_FORWARD}"]
    assert [buffer_type for _, buffer_type in placement.overrides()] == ["GPU0", "CPU", "CPU", "CPU"]


@pytest.mark.parametrize(("name", "pattern"), [("LLM_FFN_EXPS_REGEX", EXPERTS), ("LLM_FFN_DENSE_REGEX", FEED_FORWARD)])
def test_the_patterns_are_llama_cpps(name: str, pattern: str) -> None:
    (theirs,) = re.findall(rf'{name} = "(.*)";', COMMON.read_text("utf-8"))
    assert theirs.replace("\\\\", "\\") == pattern
