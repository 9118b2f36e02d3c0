"""Placements reach llama.cpp, and what it says of devices comes back; what needs a device is skipped without one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel._native import Context, Embedder, Model
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import measuring
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.host_memory import Memory
from pyllmcancel.engine.measuring import measured
from pyllmcancel.errors import ContextError, ModelLoadError, PlacementError, UsageError
from pyllmcancel.placement import Placement
from pyllmcancel.pooling import Pooling
from tests.support.tiny_embedders import write_tiny_encoder
from tests.support.tiny_models import write_tiny_llama
from tests.support.toy_models import write_toy

KINDS = ("attention", "sliding-window", "recurrent", "hybrid")
SIZES: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 2, "n_batch": 64}
CPU_ONLY = Placement(devices=())
# A small model's weights are nothing beside the gibibyte that is kept free.
ALL = Placement(n_gpu_layers="all", fit_target=(0,))

needs_device = pytest.mark.skipif(not _native.devices(), reason="there is no device")


@pytest.fixture(params=KINDS)
def path(model_files: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    return model_files[str(request.param)]


def answer(path: Path, placement: Placement) -> list[int]:
    with Engine.load(EngineConfig(model=path, placement=placement, threads=1, ctx_size=256)) as engine:
        stream = engine.generate(list(range(40, 60)), generation_params(temperature=0.0, max_tokens=8))
        return [token for delta in stream for token in delta.tokens]


def test_weights_can_be_kept_in_the_cpus_memory(path: Path) -> None:
    model = Model.load(path, placement=CPU_ONLY)
    assert model.layers_by_device == {"CPU": model.n_layer + 1}
    assert not model.is_offloaded
    assert "CPU" in _native.buffer_types()


@pytest.mark.parametrize("variant", [None, "haswell"])
def test_the_log_says_where_layers_are_and_which_back_end_the_cpu_has(
    model_files: dict[str, Path], variant: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_native, "cpu_variant", lambda: variant)
    with caplog.at_level("INFO", "pyllmcancel.engine"):
        answer(model_files["attention"], CPU_ONLY)
    placed, *rest = [line for line in caplog.messages if line.startswith(("placement", "the CPU's"))]
    assert placed.endswith("on the CPU")
    assert rest == ([] if variant is None else [f"the CPU's back end: {variant}"])


@pytest.mark.skipif(bool(_native.devices()), reason="there is a device")
@pytest.mark.parametrize(
    "options",
    [
        {"override_tensors": (("attn", "CPU"),)},
        {"kv_offload": False},
        {"op_offload": False},
        {"cpu_moe": True},
        {"n_cpu_ffn": 1},
        {"n_gpu_layers": "all"},
        {"n_gpu_layers": 1},
        {"fit": False},
    ],
)
def test_without_a_device_no_option_changes_an_answer(model_files: dict[str, Path], options: dict[str, Any]) -> None:
    path = model_files["attention"]
    assert answer(path, Placement(**options)) == answer(path, CPU_ONLY)


def test_experts_stay_in_the_cpus_memory(tmp_path: Path) -> None:
    path = write_toy(tmp_path / "experts.gguf", "qwen3moe-moe")
    for placement in (Placement(cpu_moe=True), Placement(n_cpu_moe=1), Placement(n_cpu_ffn=1)):
        model = Model.load(path, placement=placement, require_vocabulary=False)
        assert sum(model.layers_by_device.values()) == model.n_layer + 1


def test_a_model_without_its_weights_tells_the_same_facts(path: Path) -> None:
    whole, sketch = Model.load(path), Model.load(path, without_weights=True)
    for name in ("n_ctx_train", "n_embd", "n_layer", "n_swa", "n_vocab", "memory_kind", "can_divide_cells", "metadata"):
        assert getattr(sketch, name) == getattr(whole, name)


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        (Placement(devices=("GPU7",)), "there is no device GPU7"),
        (Placement(override_tensors=(("attn", "NVRAM"),)), "there is no buffer type NVRAM"),
        (Placement(override_tensors=(("(", "CPU"),)), "no pattern of tensors' names"),
        (Placement(tensor_split=(1.0,) * 10_000), "more parts"),
    ],
)
def test_the_core_refuses_what_is_not_there_too(model_files: dict[str, Path], placement: Placement, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Model.load(model_files["attention"], placement=placement)
    with pytest.raises(UsageError, match=why):
        _native.memory_use(model_files["attention"], placement, **SIZES)


def test_no_memory_of_a_device_is_taken_where_none_is_used(path: Path) -> None:
    assert _native.memory_use(path, CPU_ONLY, **SIZES) == []


def test_the_memory_of_the_cpu_is_told_where_no_device_is_used(path: Path) -> None:
    (small,) = _native.memory_use(path, CPU_ONLY, True, **SIZES)
    (large,) = _native.memory_use(path, CPU_ONLY, True, **SIZES | {"n_ctx": 8 * SIZES["n_ctx"]})
    assert small.name == "CPU"
    assert large.weights == small.weights
    assert large.cells >= small.cells > 0  # a recurrent model's do not grow


def test_a_model_is_measured_with_the_cells_that_were_asked_for(model_files: dict[str, Path]) -> None:
    path = model_files["attention"]
    by_default, asked = (measured(EngineConfig(model=path, ctx_size=size), _native) for size in (0, 16_384))
    assert by_default.weights == asked.weights >= path.stat().st_size
    assert 0 < by_default.cells < asked.cells


def test_a_model_larger_than_memory_is_refused(model_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model=model_files["attention"])
    monkeypatch.setattr(measuring, "available_memory", lambda: Memory(total=1_000, available=1_000))
    with pytest.raises(PlacementError, match="does not fit into memory: weights"):
        measured(config, _native)
    placement = replace(config.placement, fit=False)
    assert measured(replace(config, placement=placement), _native).weights > 1_000
    monkeypatch.setattr(measuring, "available_memory", lambda: Memory(total=1 << 40, available=1_000))
    assert measured(config, _native).weights > 1_000  # others that are loaded can go


def test_a_fit_without_devices_leaves_everything_as_it_is(path: Path) -> None:
    found = _native.fitted(path, CPU_ONLY, [0], **SIZES)
    assert (found.last_layers(), found.tensor_split, found.override_tensors) == (-1, (), ())


@pytest.mark.parametrize("measure", [_native.memory_use, lambda *given, **o: _native.fitted(*given, [0], **o)])
def test_what_cannot_be_loaded_cannot_be_measured(tmp_path: Path, measure: Any) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"model\.gguf"):
        measure(path, CPU_ONLY, **SIZES)


def test_an_embedders_context_is_measured_too(tmp_path: Path) -> None:
    path = write_tiny_encoder(tmp_path / "encoder.gguf")
    assert _native.memory_use(path, CPU_ONLY, **SIZES, pooling=Pooling.MEAN) == []


def test_more_cells_than_memory_can_tell_of_are_refused_before_they_are_measured(model_files: dict[str, Path]) -> None:
    sizes = SIZES | {"n_ctx": (1 << 31) - 256}
    for measure in (_native.memory_use, lambda *given, **options: _native.fitted(*given, [0], **options)):
        with pytest.raises(ContextError, match="the bookkeeping of the cells alone"):
            measure(model_files["attention"], CPU_ONLY, **sizes)


def test_cells_and_operations_may_stay_on_the_cpu(model_files: dict[str, Path], tmp_path: Path) -> None:
    model = Model.load(model_files["attention"])
    assert Context(model, **SIZES, n_threads=1, kv_offload=False, op_offload=False).n_cells >= SIZES["n_ctx"]
    encoder = Model.load(write_tiny_encoder(tmp_path / "encoder.gguf"))
    assert Embedder(encoder, **SIZES, n_threads=1, kv_offload=False, op_offload=False).n_embd == encoder.n_embd


@needs_device
def test_all_layers_go_to_a_device_where_they_fit(path: Path) -> None:
    (use,) = _native.memory_use(path, ALL, **SIZES)
    assert 0 < use.taken < use.free <= use.total
    with Engine.load(EngineConfig(model=path, placement=Placement(fit_target=(0,)), ctx_size=256)) as engine:
        assert engine.model.is_offloaded
        assert engine.model.layers_by_device == {use.name: engine.model.n_layer + 1}


@needs_device
def test_auto_takes_fewer_layers_where_a_device_is_to_stay_free(path: Path) -> None:
    device = next(device for device in _native.devices() if device.preferred)
    placement = Placement(fit_target=(device.total >> 20,))
    with Engine.load(EngineConfig(model=path, placement=placement, ctx_size=256)) as engine:
        assert not engine.model.is_offloaded


@needs_device
def test_a_context_that_no_device_can_hold_is_told_before_loading_with_what_would_fit(tmp_path: Path) -> None:
    # Many layers: a device may refuse the cells of a single one that are too many.
    path = write_tiny_llama(tmp_path / "model.gguf", n_layer=24)
    (use,) = _native.memory_use(path, ALL, **SIZES)
    n_ctx = 256 * (use.free // use.cells * SIZES["n_ctx"] // 256 + 4)
    config = EngineConfig(model=path, placement=Placement(n_gpu_layers="all"), ctx_size=n_ctx)
    with pytest.raises(PlacementError, match=r"be needed .* would fit: [0-9]+ of 25 layers, or these layers with"):
        Engine.load(config)


@needs_device
def test_without_its_cells_a_layer_takes_less_of_a_device(model_files: dict[str, Path]) -> None:
    (all_there,) = _native.memory_use(model_files["attention"], ALL, **SIZES)
    (elsewhere,) = _native.memory_use(model_files["attention"], ALL, **SIZES, kv_offload=False)
    assert (elsewhere.cells, elsewhere.weights) == (0, all_there.weights)
    assert all_there.cells > 0
