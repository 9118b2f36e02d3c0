"""The plan for a GPU: what is measured once is not measured again, and builds are taken from their archives."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf.quants import dequantize

from bench.gpu import products
from bench.gpu.ledger import Ledger, TimeOverError
from bench.random_model import FORMATS, SHAPES, matrices

MINUTES = 9 * 60.0
WHEEL = "pyllmcancel-0.1.0-cp311-abi3-linux_x86_64.whl"
MADE = {WHEEL: bytes(500), "llama-server": bytes(range(250)), products.PROBE.name: b"probe", products.KIND: b"cuda"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plan.jsonl"


def test_another_run_does_not_measure_again(path: Path) -> None:
    Ledger(path, MINUTES).add("8b, alone", tokens_per_second=9.0)
    again = Ledger(path, MINUTES)
    assert not again.wants("8b, alone", 1.0)
    assert again.wants("8b, unified", 1.0)
    assert again.rows["8b, alone"] == {"name": "8b, alone", "tokens_per_second": 9.0}


def test_a_line_that_was_cut_is_measured_again(path: Path) -> None:
    ledger = Ledger(path, MINUTES)
    ledger.add("first")
    ledger.add("second")
    path.write_bytes(path.read_bytes()[:-3])
    again = Ledger(path, MINUTES)
    assert again.wants("second", 1.0)
    again.add("second", figure=1.0)
    assert list(Ledger(path, MINUTES).rows) == ["first", "second"]


def test_a_measurement_that_takes_longer_than_is_left_does_not_begin(path: Path) -> None:
    ledger = Ledger(path, MINUTES)
    with pytest.raises(TimeOverError, match="takes about 1000 s"):
        ledger.wants("long", 1000.0)


def test_builds_come_back_from_archives_that_are_small_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "PART", 1000)
    made, folder, other = (tmp_path / name for name in ("made", "folder", "other"))
    made.mkdir()
    folder.mkdir()
    content = np.random.default_rng(1).bytes(5000)
    (made / WHEEL).write_bytes(content)
    (made / "llama-server").write_bytes(content[::-1])
    (made / "site").mkdir()  # the installed wheel, which is not packed
    products.pack(made, folder)
    assert len(list(folder.iterdir())) > 5
    assert all(part.stat().st_size <= 1000 for part in folder.iterdir())
    assert products.unpack(folder, other)
    assert {file.name: file.read_bytes() for file in other.iterdir()} == {WHEEL: content, "llama-server": content[::-1]}
    assert not products.unpack(made, other)


@pytest.mark.parametrize("cut", ["build", "pack", "install"])
def test_a_run_cut_at_its_builds_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str) -> None:
    monkeypatch.setattr(products, "BUILD", tmp_path / "build")
    for name in ("PYTHONPATH", "BENCH_PYTHON", "LLAMA_SERVER", "BENCH_PROBE"):
        monkeypatch.setenv(name, "")  # what is set is reset
    monkeypatch.setattr(products, "build", lambda folder, *_: make_products(folder))
    monkeypatch.setattr(products, "install", lambda folder: (folder / "site").mkdir())
    monkeypatch.setattr(products, "make_environment", lambda folder: folder.mkdir(exist_ok=True) or folder)
    with monkeypatch.context() as patch:
        patch.setattr(products, cut, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            products.provide(tmp_path, "cuda", "90-real", MINUTES)
    products.provide(tmp_path, "cuda", "90-real", MINUTES)
    made = tmp_path / "build" / "products"
    assert products.archives(tmp_path)
    assert (made / "site").is_dir()
    shutil.rmtree(tmp_path / "build")
    with monkeypatch.context() as patch:  # another machine, which has the archives
        patch.setattr(products, "build", lambda *_: pytest.fail("built again"))
        products.provide(tmp_path, "cuda", "90-real", MINUTES)
    assert sorted(path.name for path in made.iterdir()) == sorted([*MADE, "site", "venv"])


def make_products(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in MADE.items():
        (folder / name).write_bytes(content)


def test_blocks_of_q4_k_have_the_deviation_that_was_asked_for() -> None:
    q4_k = FORMATS["q4_k"]
    std = np.full((64, 1), 0.02, dtype=np.float32)
    values = dequantize(q4_k.draw(np.random.default_rng(1), (64, 1024), std), q4_k.kind)
    assert values.shape == (64, 1024)
    assert abs(values.std() / 0.02 - 1) < 0.02
    assert abs(values.mean()) < 0.001


@pytest.mark.parametrize("name", SHAPES)
def test_matrices_consist_of_whole_blocks(name: str) -> None:
    assert all(matrix.columns % 32 == 0 for matrix in matrices(SHAPES[name]))
    if name != "135m":
        assert all(matrix.columns % 256 == 0 for matrix in matrices(SHAPES[name]))
