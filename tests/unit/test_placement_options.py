"""``serve``'s options for devices, under llama-server's names: what they mean, and what they cannot mean."""

from typing import Any

import pytest

from pyllmcancel.cli import main
from pyllmcancel.cli.serve_options import NO_DEVICES
from pyllmcancel.config import EngineConfig
from pyllmcancel.placement import Device, Placement
from tests.http.test_serve_options import config_of

BLAS = Device("BLAS", "OpenBLAS", "BLAS", 0, 0, False, accelerator=True)
GPU = Device("GPU0", "a card", "Fake", 8 << 30, 6 << 30, True)


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
        ("", "n_gpu_layers", "auto"),
        ("-ngl auto", "n_gpu_layers", "auto"),
        ("-ngl -1", "n_gpu_layers", "auto"),
        ("--gpu-layers all", "n_gpu_layers", "all"),
        ("-ngl -2", "n_gpu_layers", "all"),
        ("--n-gpu-layers 12", "n_gpu_layers", 12),
        ("", "devices", None),
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
        ("--no-kv-offload", "kv_offload", False),
        ("-nkvo -kvo", "kv_offload", True),
        ("--no-op-offload", "op_offload", False),
        ("-fit off", "fit", False),
        ("", "fit_target", (1024,)),
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
    monkeypatch.setattr("pyllmcancel.cli.serve_options.devices", lambda: [GPU, GPU._replace(preferred=False), BLAS])
    first, second, third = list_devices(capsys).splitlines()
    assert first == "GPU0: a card, Fake, 8.0 GiB, 6.0 GiB free"
    assert second == f"{first}, not used unless it is named"
    assert third == "BLAS: OpenBLAS, BLAS, used beside the CPU"


def test_without_devices_the_list_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.cli.serve_options.devices", list)
    assert list_devices(capsys) == NO_DEVICES
