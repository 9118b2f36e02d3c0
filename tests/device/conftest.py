"""Tests of what is a device's alone; they need one. ``python tools/test_vulkan.py`` makes one of the processor."""

from pathlib import Path

import pytest

from tests.support.device import ON_DEVICE
from tests.support.tiny_models import write_tiny_llama

MISSING = "no device: python tools/test_vulkan.py"


@pytest.fixture(autouse=True, scope="session")
def _device() -> None:
    if not ON_DEVICE:
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, and 8 MB of weights: so much that memory that is not given back is seen."""
    path = tmp_path_factory.mktemp("device") / "model.gguf"
    return write_tiny_llama(path, n_layer=4, n_embd=256, n_head=8, n_head_kv=4, n_ff=512, n_ctx_train=32_768)
