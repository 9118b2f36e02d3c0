"""LoRA adapters: applied by every context of the model that was loaded with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.errors import ModelLoadError
from tests.native.conftest import World, ok
from tests.support.broken_models import write_not_gguf
from tests.support.device import load_model
from tests.support.tiny_adapter import write_tiny_adapter

PROMPT = [(7 * n + 3) % 250 for n in range(12)]


def logits(path: Path, *lora: tuple[Path, float]) -> np.ndarray:
    world = World(_native, "attention", path, load_model(path, lora=lora))
    context = world.context()
    world.open(context, 0, PROMPT)
    ok(context.step([(0, len(PROMPT))]))
    return np.array(context.logits(0))


def test_an_adapter_changes_the_logits_by_its_scale(model_files: dict[str, Path], tmp_path: Path) -> None:
    model, adapter = model_files["attention"], write_tiny_adapter(tmp_path / "adapter.gguf")
    plain = logits(model)
    changes = [np.abs(logits(model, (adapter, scale)) - plain).max() for scale in (0.0, 0.01, 1.0)]
    assert changes[0] == 0.0
    assert changes[0] < changes[1] < changes[2]


def test_what_is_no_adapter_is_refused_by_name(model_files: dict[str, Path], tmp_path: Path) -> None:
    broken = write_not_gguf(tmp_path / "no-adapter.gguf")
    with pytest.raises(ModelLoadError, match=r"no-adapter\.gguf"):
        _native.Model.load(model_files["attention"], lora=[(broken, 1.0)])


def test_an_adapter_of_another_model_is_refused(model_files: dict[str, Path], tmp_path: Path) -> None:
    adapter = write_tiny_adapter(tmp_path / "adapter.gguf")
    with pytest.raises(ModelLoadError, match="adapter"):
        _native.Model.load(model_files["recurrent"], lora=[(adapter, 1.0)])
