"""How many layers go to devices, by what a made-up measurement says that they would take."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.fitting import fit, placed, resolved, summary
from pyllmcancel.errors import LoadCancelled, ModelLoadError, PlacementError
from pyllmcancel.placement import Device, DeviceUse, Placement
from tests.support import fake_native

MIB = 1 << 20
N_LAYERS = 11  # ten, and the output's
N_CTX = 4096


class Machine:
    """One or two devices. A layer takes 100 MiB, shared among them, each of its cells 10 KiB, and buffers 50 MiB."""

    def __init__(self, *free: int, theirs: Placement | None = None) -> None:
        self.free = [mib * MIB for mib in free]
        self.theirs = theirs
        self.n_measured = 0
        self.margins: list[int] = []

    def measure(self, placement: Placement, n_ctx: int) -> Sequence[DeviceUse]:
        self.n_measured += 1
        asked = placement.last_layers()
        n_layers = N_LAYERS if asked < 0 else min(asked, N_LAYERS)
        part = n_layers / len(self.free)
        weights, cells = int(part * 100 * MIB), int(part * n_ctx * 10 * 1024)
        return [DeviceUse(f"GPU{n}", 2 * free, free, weights, cells, 50 * MIB) for n, free in enumerate(self.free)]

    def fitted(self, placement: Placement, margins: list[int]) -> Placement | None:
        assert placement.n_gpu_layers == "auto"
        self.margins = margins
        return self.theirs

    def fit(self, **options: Any) -> Placement:
        return fit(Placement(**options), N_LAYERS, self.measure, N_CTX, self.fitted)


def test_auto_is_what_llama_cpp_finds() -> None:
    machine = Machine(1000, theirs=Placement(n_gpu_layers=4))
    assert machine.fit(fit_target=(300,)) == Placement(n_gpu_layers=4)
    assert (machine.margins, machine.n_measured) == ([300 * MIB], 0)


def test_auto_takes_all_layers_where_they_fit_beside_what_was_chosen() -> None:
    machine = Machine(4000)
    assert machine.fit(tensor_split=(1.0,)).n_gpu_layers == "all"
    assert machine.n_measured == 1


# A layer takes 140 MiB with its cells.
@pytest.mark.parametrize(("free", "n_layers"), [(100, 0), (200, 1), (1000, 6), (1589, 10)])
def test_auto_takes_as_many_layers_as_fit_beside_what_was_chosen(free: int, n_layers: int) -> None:
    found = Machine(free).fit(cpu_moe=True, fit_target=(0,))
    assert found == Placement(n_gpu_layers=n_layers, cpu_moe=True, fit_target=(0,))


def test_auto_goes_on_by_itself_where_llama_cpp_finds_nothing() -> None:
    assert Machine(1000).fit(fit_target=(0,)).n_gpu_layers == 6


@pytest.mark.parametrize(("target", "n_layers"), [((0,), 6), ((200,), 3), ((0, 400), 6), ((900,), 0)])
def test_each_device_keeps_its_margin(target: tuple[int, ...], n_layers: int) -> None:
    assert Machine(500, 900).fit(fit_target=target, split_mode="row").n_gpu_layers == n_layers


@pytest.mark.parametrize("n_gpu_layers", [3, 6])
def test_layers_that_fit_are_taken_as_they_are(n_gpu_layers: int) -> None:
    assert Machine(1000).fit(n_gpu_layers=n_gpu_layers) == Placement(n_gpu_layers=n_gpu_layers)


@pytest.mark.parametrize(
    ("n_gpu_layers", "n_cells"), [("all", ""), (99, ""), (9, ", or these layers with --ctx-size 512")]
)
def test_layers_that_do_not_fit_are_an_error_that_says_what_would(n_gpu_layers: Any, n_cells: str) -> None:
    with pytest.raises(PlacementError) as raised:
        Machine(1000).fit(n_gpu_layers=n_gpu_layers)
    told = str(raised.value)
    assert told.startswith(f"--n-gpu-layers {n_gpu_layers} does not fit: GPU0 has 1000 MiB of 2.0 GiB free, and ")
    assert told.endswith(f". These would fit: 6 of 11 layers{n_cells}. With --fit off nothing is measured")


def test_auto_takes_what_can_be_measured_where_all_layers_cannot_be() -> None:
    class Small(Machine):
        def measure(self, placement: Placement, n_ctx: int) -> Sequence[DeviceUse]:
            if not 0 <= placement.last_layers() <= 3:
                raise ModelLoadError("a buffer is larger than GPU0 can address")
            return super().measure(placement, n_ctx)

        def fitted(self, placement: Placement, margins: list[int]) -> Placement | None:
            raise ModelLoadError("its use of memory could not be measured")

    assert Small(4000).fit().n_gpu_layers == 3


def test_a_device_that_tells_no_memory_is_taken_to_have_it() -> None:
    class Silent(Machine):
        def measure(self, placement: Placement, n_ctx: int) -> Sequence[DeviceUse]:
            return [use._replace(total=0, free=0) for use in super().measure(placement, n_ctx)]

    assert Silent(0).fit(n_gpu_layers="all") == Placement(n_gpu_layers="all")


def test_an_error_names_the_device_that_lacks_memory_and_no_other() -> None:
    with pytest.raises(PlacementError, match="GPU1 has") as raised:
        Machine(4000, 100).fit(n_gpu_layers="all")
    assert "GPU0" not in str(raised.value)


class Native:
    """The functions that `resolved` needs of the compiled module."""

    def __init__(self, *there: Device) -> None:
        self.there = list(there)
        self.patterns: list[str] = []

    def devices(self) -> list[Device]:
        return self.there

    def buffer_types(self) -> list[str]:
        return [*(device.name for device in self.there), "CPU"]

    def check_tensor_pattern(self, pattern: str) -> None:
        self.patterns.append(pattern)

    def measures_nothing(self, *_given: Any, **_options: Any) -> None:
        raise AssertionError("nothing needs to be measured")

    Model = SimpleNamespace(load=measures_nothing)


GPU = Device("GPU0", "a card", "Fake", 8 << 30, 6 << 30, True)


def test_a_device_that_is_there_is_used() -> None:
    native = Native(GPU)
    placement = Placement(override_tensors=(("exps", "CPU"),))
    assert resolved(placement, native) == (placement, [GPU])
    assert native.patterns == ["exps"]


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ({"CPU": 5}, "all 5 layers on the CPU"),
        ({"CPU": 2, "GPU0": 3}, "of 5 layers 3 on GPU0, 2 on the CPU"),
        ({"GPU0": 2, "GPU1": 3}, "of 5 layers 2 on GPU0, 3 on GPU1"),
    ],
)
def test_the_log_says_which_device_has_how_many(layers: dict[str, int], told: str) -> None:
    assert summary(layers) == told


@pytest.mark.parametrize(
    ("there", "options", "n_gpu_layers"),
    [
        ([], {}, 0),
        ([], {"n_gpu_layers": "all"}, 0),
        ([GPU], {"n_gpu_layers": 0}, 0),
        ([GPU], {"devices": ()}, 0),
        ([GPU], {"fit": False}, "auto"),
        ([GPU], {"split_mode": "tensor", "n_gpu_layers": 3}, 3),
    ],
)
def test_nothing_is_measured_without_need(there: list[Device], options: dict[str, Any], n_gpu_layers: Any) -> None:
    config = placed(EngineConfig(placement=Placement(**options)), Native(*there))
    assert config.placement == replace(Placement(**options), n_gpu_layers=n_gpu_layers)


@pytest.mark.parametrize(("options", "n_lines"), [({"n_gpu_layers": 12}, 1), ({}, 0), ({"n_gpu_layers": 0}, 0)])
def test_layers_that_no_device_is_there_for_are_told(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], n_lines: int
) -> None:
    with caplog.at_level(logging.WARNING):
        config = placed(EngineConfig(placement=Placement(**options)), Native())
    assert config.placement.n_gpu_layers == 0
    assert len(caplog.messages) == n_lines
    assert all("no device: --n-gpu-layers 12 is ignored" in line for line in caplog.messages)


@pytest.mark.parametrize("n_allowed", range(3))
def test_a_load_that_is_given_up_while_it_is_measured_ends_there(n_allowed: int) -> None:
    class Measuring(Native):
        """A device that nothing fits on, so that it is measured several times."""

        n_measured = 0

        def __init__(self) -> None:
            super().__init__(GPU)
            self.Model = SimpleNamespace(load=lambda *_args, **_options: fake_native.Model())

        def fitted(self, *_args: Any, **_options: Any) -> None:
            return None

        def memory_use(self, *_args: Any, **_options: Any) -> list[DeviceUse]:
            self.n_measured += 1
            return [DeviceUse("GPU0", MIB, 0, MIB, MIB, MIB)]

    native = Measuring()
    answers = iter([True] * n_allowed + [False])
    with pytest.raises(LoadCancelled):
        placed(EngineConfig(), native, lambda _: next(answers))
    assert native.n_measured == max(0, n_allowed - 1)  # the first question is before the model is looked at
