"""The identity of states in files: everything that they depend on changes it, and nothing else does."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.state_identity import FileHashes, state_identity
from tests.support import fake_native


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * 1000)
    return path


def identity(
    known: Path, model: Path, kind: str = "attention", cells: dict[str, Any] | None = None, **config: Any
) -> str:
    sizes = {"n_ctx": 512, "n_seq_max": 2, "n_batch": 16, "n_threads": 1} | (cells or {})
    context = fake_native.Context(fake_native.Model(kind), **sizes)
    return state_identity(context, EngineConfig(model=model, **config), fake_native, known)  # type: ignore[arg-type]


def test_the_same_file_under_another_name_is_the_same_model(tmp_path: Path, model: Path) -> None:
    first = identity(tmp_path / "known", model)
    copy = Path(shutil.copy(model, tmp_path / "copy.gguf"))
    assert identity(tmp_path / "known", copy) == first
    assert identity(tmp_path / "elsewhere", model) == first, "nothing depends on what was known"


def test_whatever_states_depend_on_changes_it(tmp_path: Path, model: Path) -> None:
    adapter, other = tmp_path / "adapter.gguf", tmp_path / "other.gguf"
    adapter.write_bytes(b"adapter")
    other.write_bytes(model.read_bytes()[:-1] + b"x")
    known = tmp_path / "known"
    all_ = [
        identity(known, model),
        identity(known, other),
        identity(known, model, lora=((adapter, 1.0),)),
        identity(known, model, lora=((adapter, 1.0), (adapter, 1.0))),
        identity(known, model, cache_type_k="q8_0"),
        identity(known, model, cache_type_v="q8_0"),
        identity(known, model, flash_attn="on"),
        identity(known, model, cells={"kv_unified": False}),
        identity(known, model, cells={"n_ctx": 1024}),
        identity(known, model, kind="hybrid"),
    ]
    assert len(set(all_)) == len(all_)


def test_what_states_do_not_depend_on_does_not(tmp_path: Path, model: Path) -> None:
    known = tmp_path / "known"
    first = identity(known, model)
    assert first == identity(known, model, threads=3, max_queue=7, alias="name", cache_ram=0, draft_max=4)
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"adapter")
    # A prefix has the scales that computed it.
    adapted = [identity(known, model, lora=((adapter, scale),)) for scale in (1.0, 0.5)]
    assert adapted[0] == adapted[1] != first


def test_a_file_that_changed_is_read_again_even_with_its_old_times(tmp_path: Path, model: Path) -> None:
    before, times = FileHashes(tmp_path / "known").of(model), model.stat()
    content = bytearray(model.read_bytes())
    content[100_000] ^= 1
    with model.open("r+b") as file:
        file.write(content)
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert model.stat().st_size == times.st_size
    assert FileHashes(tmp_path / "known").of(model) != before


def test_a_known_file_is_not_read_again(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = FileHashes(tmp_path / "known").of(model)
    monkeypatch.setattr(FileHashes, "_digest", None)
    assert FileHashes(tmp_path / "known").of(model) == known


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"x": 1}', b"\xff"])
def test_damaged_notes_only_cost_time(tmp_path: Path, model: Path, content: bytes) -> None:
    known = tmp_path / "known"
    known.write_bytes(content)
    assert FileHashes(known).of(model) == FileHashes(tmp_path / "other").of(model)


def test_notes_that_cannot_be_written_only_cost_time(tmp_path: Path, model: Path) -> None:
    assert FileHashes(tmp_path / "missing" / "known").of(model) == FileHashes(tmp_path / "known").of(model)
