"""A model's file is read into the system's cache with progress, and a cancel ends that."""

import sys
from pathlib import Path

import pytest

from pyllmcancel.engine import model_loading
from pyllmcancel.engine.host_memory import Memory
from pyllmcancel.engine.model_loading import CHUNK, read_first, read_uncached
from pyllmcancel.errors import LoadCancelled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are read ahead on Linux")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(3 * CHUNK))
    return path


@pytest.fixture
def nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "is_cached", lambda *_: False)


@pytest.mark.usefixtures("nothing_is_cached")
def test_each_chunk_is_reported_across_all_files(file: Path) -> None:
    told: list[float] = []
    assert read_uncached([file, file], told.append)
    assert told == [i / 6 for i in range(6)]


@pytest.mark.usefixtures("nothing_is_cached")
def test_a_cancel_ends_it_at_the_next_chunk(file: Path) -> None:
    told: list[float] = []

    def progress(fraction: float) -> bool:
        told.append(fraction)
        return len(told) < 2

    with pytest.raises(LoadCancelled):
        read_uncached([file], progress)
    assert len(told) == 2


def test_a_cached_file_is_not_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "is_cached", lambda *_: True)
    assert not read_uncached([file], lambda _: pytest.fail("it was read"))


@pytest.mark.usefixtures("nothing_is_cached")
def test_the_rest_of_the_load_is_the_second_half(file: Path) -> None:
    told: list[float] = []
    rest = read_first(file, told.append)
    assert max(told) < 0.5
    rest(0.0)
    rest(1.0)
    assert told[-2:] == [0.5, 1.0]


@pytest.mark.usefixtures("nothing_is_cached")
def test_a_file_larger_than_memory_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "available_memory", lambda: Memory(CHUNK, CHUNK))
    read_first(file, lambda _: pytest.fail("it was read"))
