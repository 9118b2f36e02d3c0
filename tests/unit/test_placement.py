"""A placement's check against made-up devices, the patterns of tensors, and ``serve``'s options for devices."""

import re
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import main
from pyllmcancel.cli.serve_options import NO_DEVICES
from pyllmcancel.config import EngineConfig
from pyllmcancel.errors import UsageError
from pyllmcancel.placement import EXPERTS, FEED_FORWARD, Device, Placement
from tests.http.test_serve_options import config_of

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


# -- options of `serve` ------------------------------------------------------------------------------------------------


BLAS = Device("BLAS", "OpenBLAS", "BLAS", 0, 0, False, accelerator=True)
CARD = Device("GPU0", "a card", "Fake", 8 << 30, 6 << 30, True)


def placement_of(*given: str) -> Placement:
    return config_of(*given).engine.placement


def error_of(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    try:
        status = main(["serve", "--port", "0", *given])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("-ngl auto", "n_gpu_layers", "auto"),
        ("-ngl -1", "n_gpu_layers", "auto"),
        ("--gpu-layers all", "n_gpu_layers", "all"),
        ("-ngl -2", "n_gpu_layers", "all"),
        ("--n-gpu-layers 12", "n_gpu_layers", 12),
        ("-dev none", "devices", ()),
        ("--device GPU0,GPU1", "devices", ("GPU0", "GPU1")),
        ("-sm row", "split_mode", "row"),
        ("-ts 3,1", "tensor_split", (3.0, 1.0)),
        ("-ts 3/1", "tensor_split", (3.0, 1.0)),
        ("-mg 1", "main_gpu", 1),
        ("-ot exps=CPU,attn=GPU0 -ot out=CPU", "override_tensors", (("exps", "CPU"), ("attn", "GPU0"), ("out", "CPU"))),
        ("-cmoe", "cpu_moe", True),
        ("-ncmoe 3", "n_cpu_moe", 3),
        ("-ncffn 2", "n_cpu_ffn", 2),
        ("-nkvo", "kv_offload", False),
        ("-nkvo -kvo", "kv_offload", True),
        ("--no-op-offload", "op_offload", False),
        ("-fit off", "fit", False),
        ("-fitt 512,2048", "fit_target", (512, 2048)),
    ],
)
def test_llama_servers_spellings_reach_the_placement(given: str, name: str, value: Any) -> None:
    assert getattr(placement_of(*given.split()), name) == value


def test_without_options_it_is_the_engines_own() -> None:
    assert placement_of() == EngineConfig().placement == Placement()


def test_an_option_comes_from_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DEVICE": "none", "FIT": "off", "TENSOR_SPLIT": "1,2", "KV_OFFLOAD": "0"}.items():
        monkeypatch.setenv(f"PYLLMCANCEL_{name}", value)
    expected = Placement(devices=(), fit=False, tensor_split=(1.0, 2.0), kv_offload=False)
    assert placement_of() == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("-ngl many", "must be a number of layers, all or auto, not 'many'"),
        ("-dev GPU0,none", "names separated by commas, or none"),
        ("-ts a,b", "must be a number, not 'a'"),
        ("-ot exps", "must be PATTERN=TYPE"),
        ("-fit perhaps", "must be on or off"),
        ("-dev GPU7", "there is no device GPU7; there is"),
        ("-dev none -ngl 4", "--device none leaves no device"),
        ("-ot (=CPU", "no pattern of tensors' names is ("),
    ],
)
def test_senseless_options_are_errors_before_any_load(capsys: pytest.CaptureFixture[str], given: str, why: str) -> None:
    assert why in error_of(capsys, *given.split())


def list_devices(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--list-devices"])
    assert not ended.value.code
    return capsys.readouterr().out


def test_devices_are_listed_with_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.cli.serve_options.devices", lambda: [CARD, CARD._replace(preferred=False), BLAS])
    first, second, third = list_devices(capsys).splitlines()
    assert first == "GPU0: a card, Fake, 8.0 GiB, 6.0 GiB free"
    assert second == f"{first}, not used unless it is named"
    assert third == "BLAS: OpenBLAS, BLAS, used beside the CPU"


def test_without_devices_the_list_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.cli.serve_options.devices", list)
    assert list_devices(capsys) == NO_DEVICES
