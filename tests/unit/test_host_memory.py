"""A model that does not fit into memory is refused before it is loaded, with what would fit."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import cell_layout, host_memory
from pyllmcancel.engine.fitting import placed
from pyllmcancel.engine.host_memory import Memory, control_group_limits, file_size
from pyllmcancel.errors import PlacementError
from pyllmcancel.placement import Placement

GIB = 1 << 30


class Native:
    """A build without devices, and a model of 70 billion weights: 80 layers, each with a cell of 4 KiB for a token."""

    n_params = 70_000_000_000
    n_layer = 80
    n_vocab = 128_000
    n_ctx_train = 131_072
    n_swa = 0
    can_divide_cells = True
    is_offloaded = False
    metadata = MappingProxyType(
        {
            "general.architecture": "llama",
            "llama.embedding_length": "8192",
            "llama.attention.head_count": "64",
            "llama.attention.head_count_kv": "8",
        }
    )

    def devices(self) -> list[Any]:
        return []

    def buffer_types(self) -> list[str]:
        return []

    @property
    def Model(self) -> Any:  # noqa: N802 (as in the compiled module)
        return self

    def load(self, _path: Path, *, placement: Placement, without_weights: bool) -> Any:
        assert without_weights
        return self


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.truncate(140 * GIB)
    return path


@pytest.mark.parametrize(
    ("available", "part"),
    [
        (100, "This model would fit as Q8_0, with 69.3 GiB"),
        (45, "This model would fit as Q4_K_M, with 39.9 GiB"),
        (23, "No usual quantization of this model would fit; a model of 40.3 billion weights as Q4_K_M would"),
    ],
)
def test_a_file_larger_than_memory_is_refused_with_what_would_fit(
    monkeypatch: pytest.MonkeyPatch, large: Path, available: int, part: str
) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(128 * GIB, available * GIB))
    with pytest.raises(PlacementError) as refused:
        placed(EngineConfig(model=large), Native())
    text = str(refused.value)
    assert f"{large} does not fit into memory: it has 140.0 GiB, and {available}.0 GiB of 128.0 GiB are" in text
    assert part in text
    assert text.endswith("With --fit off nothing is measured")


@pytest.mark.parametrize("memory", [None, Memory(800 * GIB, 600 * GIB)], ids=["unknown", "enough"])
def test_a_file_that_fits_is_not_read(monkeypatch: pytest.MonkeyPatch, large: Path, memory: Memory | None) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: memory)
    monkeypatch.setattr(Native, "load", lambda *_, **__: pytest.fail("the model's header was read"))
    assert placed(EngineConfig(model=large), Native()).model == large


def test_without_a_measurement_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, large: Path) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(GIB, GIB))
    placed(EngineConfig(model=large, placement=Placement(fit=False)), Native())


# The buffers have 128,000 scores for each of 512 tokens: 0.2 GiB. A cell of all layers has 320 KiB.
@pytest.mark.parametrize(
    ("options", "available", "part"),
    [
        (
            {"ctx_size": 8192},
            144,
            "cells 10.0 GiB, buffers 250 MiB, and 144.0 GiB of 200.0 GiB are available. --ctx-size 3072",
        ),
        (
            {"ctx_size": 8192, "kv_unified": True},
            142,
            "cells 2.5 GiB, buffers 250 MiB, and 142.0 GiB of 200.0 GiB are available. --ctx-size 5632",
        ),
        ({"ctx_size": 8192, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 142, "cells 5.3 GiB, "),
    ],
)
def test_a_context_that_leaves_no_room_is_refused_with_the_largest_that_would(
    monkeypatch: pytest.MonkeyPatch, large: Path, options: dict[str, Any], available: int, part: str
) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(200 * GIB, available * GIB))
    monkeypatch.setattr(cell_layout, "memory_bytes", lambda: 200 * GIB)
    with pytest.raises(PlacementError) as refused:
        placed(EngineConfig(model=large, **options), Native())
    text = str(refused.value)
    assert f"{large} with --ctx-size 8192 does not fit into memory: weights 140.0 GiB, {part}" in text
    assert text.endswith(" would fit. With --fit off nothing is measured")
    size = int(text.partition("--ctx-size 8192")[2].partition("--ctx-size ")[2].partition(" ")[0])
    assert placed(EngineConfig(model=large, **options | {"ctx_size": size}), Native()).ctx_size == size


def test_a_context_that_cannot_shrink_asks_for_a_smaller_model(monkeypatch: pytest.MonkeyPatch, large: Path) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(200 * GIB, 140 * GIB))
    with pytest.raises(PlacementError, match=r"are available\. This model would fit as Q8_0, with 69.3 GiB\. With"):
        placed(EngineConfig(model=large, ctx_size=256), Native())


def test_a_context_that_nobody_asked_for_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, large: Path
) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(200 * GIB, 150 * GIB))
    monkeypatch.setattr(cell_layout, "memory_bytes", lambda: 200 * GIB)
    placed(EngineConfig(model=large), Native())
    (record,) = caplog.records
    assert record.getMessage() == (
        "memory may run out when all cells are used: weights 140.0 GiB, cells 20.0 GiB, buffers 250 MiB, and 150.0 GiB"
        " of 200.0 GiB are available. --ctx-size 7936 would fit"
    )


@pytest.mark.parametrize(
    "change",
    [{"n_swa": 512}, {"can_divide_cells": False}, {"metadata": Native.metadata | {"llama.pooling_type": "1"}}],
    ids=["sliding window", "recurrent", "embeddings"],
)
def test_cells_that_the_header_does_not_give_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, large: Path, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(200 * GIB, 141 * GIB))
    for name, value in change.items():
        monkeypatch.setattr(Native, name, value)
    placed(EngineConfig(model=large, ctx_size=65_536), Native())
    assert not caplog.records


def test_layers_without_cells_and_latent_attention_are_counted_as_they_are() -> None:
    def bytes_of(**more: str) -> float:
        metadata = Native.metadata | {f"llama.attention.{name}": value for name, value in more.items()}
        return cell_layout.cell_bytes(metadata, 4, EngineConfig())

    assert bytes_of() == 4 * 8 * 128 * 2 * 2
    assert bytes_of(head_count_kv="[8, 0, 8, 0]") == bytes_of() / 2
    assert bytes_of(head_count_kv="1", key_length="576", value_length="512", key_length_mla="192") == 4 * 576 * 2


def test_all_parts_of_a_model_count(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"model-{i:05}-of-00003.gguf").write_bytes(b"x" * i)
    assert file_size(tmp_path / "model-00001-of-00003.gguf") == 6
    (tmp_path / "model-00002-of-00003.gguf").unlink()
    assert file_size(tmp_path / "model-00001-of-00003.gguf") == 4


def group(folder: Path, limit: str, used: int, cached: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\nactive_file 1\n")


def test_a_containers_limit_counts_and_its_cached_files_are_available(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/outer/inner\n")
    (tmp_path / "groups").mkdir()
    group(tmp_path / "groups" / "outer", "1000", 400, 299)
    group(tmp_path / "groups" / "outer" / "inner", "max", 400, 299)
    assert control_group_limits(tmp_path / "groups", own) == [Memory(1000, 900)]
    assert control_group_limits(tmp_path / "groups", tmp_path / "none") == []


def test_a_draft_model_has_as_many_cells_as_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The draft model was trained with a sixteenth of the model's context, which says nothing about its cells."""
    small = Native()
    small.n_ctx_train = Native.n_ctx_train // 16
    path = tmp_path / "small.gguf"
    path.touch()
    config = EngineConfig(draft_model=path)
    need = host_memory.ContextNeed.of(Native(), config)  # type: ignore[arg-type]
    for n_missing in (0, 1):
        memory = Memory(1 << 50, 2 * (need.cells + need.buffers) - n_missing)
        monkeypatch.setattr(host_memory, "available_memory", lambda memory=memory: memory)
        warned = []
        monkeypatch.setattr(host_memory.logger, "warning", lambda *told, warned=warned: warned.append(told))
        host_memory.check_memory_of_both(path, Native(), small, config)  # type: ignore[arg-type]
        assert len(warned) == n_missing
