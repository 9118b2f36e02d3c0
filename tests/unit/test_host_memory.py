"""A model that does not fit into memory is refused before it is loaded, with what would fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import host_memory
from pyllmcancel.engine.fitting import placed
from pyllmcancel.engine.host_memory import Memory, available_memory, control_group_limits, file_size, fitting
from pyllmcancel.errors import PlacementError
from pyllmcancel.placement import Placement

GIB = 1 << 30


class Native:
    """A build without devices, and a model of 70 billion weights."""

    n_params = 70_000_000_000

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


@pytest.mark.parametrize("memory", [None, Memory(200 * GIB, 150 * GIB)], ids=["unknown", "enough"])
def test_a_file_that_fits_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch, large: Path, memory: Memory | None
) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: memory)
    monkeypatch.setattr(Native, "n_params", property(lambda _: pytest.fail("the model's header was read")))
    assert placed(EngineConfig(model=large), Native()).model == large


def test_without_a_measurement_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, large: Path) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: Memory(GIB, GIB))
    placed(EngineConfig(model=large, placement=Placement(fit=False)), Native())


def test_all_parts_of_a_model_count(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"model-{i:05}-of-00003.gguf").write_bytes(b"x" * i)
    assert file_size(tmp_path / "model-00001-of-00003.gguf") == 6
    (tmp_path / "model-00002-of-00003.gguf").unlink()
    assert file_size(tmp_path / "model-00001-of-00003.gguf") == 4


def test_a_small_model_fits_as_the_best_quantization() -> None:
    assert fitting(1_000_000, GIB) == "This model would fit as Q8_0, with 1 MiB"


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


def test_this_machine_has_memory() -> None:
    found = available_memory()
    assert found is None or 0 < found.available <= found.total
