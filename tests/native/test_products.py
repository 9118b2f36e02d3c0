"""Products of quantized weights give what the same weights give as floats, but for the rounding of activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from pyllmcancel import _native
from tests.native.conftest import World, ok
from tests.support import tiny_models
from tests.support.device import load_model

# Activations of 8 bits are rounded by half a percent of their deviation, in each product of two layers. Weights that
# are read wrongly give other numbers altogether: an error of one or more.
MOST = 0.06
PROMPT = [(7 * n + 3) % 250 for n in range(21)]  # five tiles of four rows, and one row


def logits(path: Path, chunk: int) -> NDArray[np.float32]:
    """The logits of the prompt's last token, shape (n_vocab,), if `chunk` tokens are computed in a step."""
    world = World(_native, path.stem, path, load_model(path), options={})
    context = world.context(n_ctx=64, n_batch=32, n_threads=2)
    world.open(context, 0, PROMPT)
    for begin in range(0, len(PROMPT), chunk):
        ok(context.step([(0, min(chunk, len(PROMPT) - begin))]))
    return np.array(context.logits(0))


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
)
def test_quantized_weights_count_as_what_they_stand_for(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_ = GGMLQuantizationType[kind]
    sizes = {"n_embd": 256, "n_head": 8, "n_head_kv": 2, "n_ff": 512}
    tiny_models.write_tiny_llama(tmp_path / "quantized.gguf", quantization=type_, **sizes)
    blocks_of = tiny_models.quantized
    monkeypatch.setattr(
        tiny_models,
        "quantized",
        lambda name, values, _: dequantize(blocks_of(name, values, type_), type_).astype(np.float32),
    )
    tiny_models.write_tiny_llama(tmp_path / "plain.gguf", quantization=GGMLQuantizationType.F32, **sizes)
    expected = logits(tmp_path / "plain.gguf", len(PROMPT))
    for chunk in (1, len(PROMPT)):
        found = logits(tmp_path / "quantized.gguf", chunk)
        assert np.sqrt(np.mean((found - expected) ** 2)) < MOST * expected.std()
