"""LoRA adapters: each sequence of a context names those that compute it."""

from pathlib import Path

import pytest

from pyllmcancel import _native
from pyllmcancel.adapters import Adapter
from pyllmcancel.errors import ModelLoadError
from tests.support.broken_models import write_not_gguf
from tests.support.toy_adapters import write_adapter


def test_what_is_no_adapter_is_refused_by_name(model_files: dict[str, Path], tmp_path: Path) -> None:
    broken = write_not_gguf(tmp_path / "no-adapter.gguf")
    with pytest.raises(ModelLoadError, match=r"no-adapter\.gguf"):
        _native.Model.load(model_files["attention"], lora=[broken])


def test_an_adapter_of_another_model_is_refused(model_files: dict[str, Path], tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", model_files["attention"])
    with pytest.raises(ModelLoadError, match="adapter"):
        _native.Model.load(model_files["recurrent"], lora=[adapter])


def test_an_adapter_is_described_by_its_file(model_files: dict[str, Path], tmp_path: Path) -> None:
    model = model_files["attention"]
    plain = write_adapter(tmp_path / "plain.gguf", model)
    facts = {"task_name": "verses", "prompt_prefix": "Thou", "invocation": (5, 6, 7)}
    full = write_adapter(tmp_path / "full.gguf", model, **facts)  # type: ignore[arg-type]
    loaded = _native.Model.load(model, lora=[plain, full])
    assert loaded.adapters == [Adapter(), Adapter("verses", "Thou", (5, 6, 7))]


def test_an_adapter_that_no_token_can_activate_is_refused(model_files: dict[str, Path], tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", model_files["attention"], invocation=(1 << 20,))
    with pytest.raises(ModelLoadError, match="activated"):
        _native.Model.load(model_files["attention"], lora=[adapter])
