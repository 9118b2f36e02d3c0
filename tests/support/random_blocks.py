"""Weights of llama.cpp's K-quants, which the gguf package reads but does not write: random blocks of a given size."""

import math
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

# Bytes of a block at which its 16-bit scales lie, and how large such a scale is, for weights of about 1.
SCALES = {
    GGMLQuantizationType.Q4_K: {0: 0.005, 2: 0.03},
    GGMLQuantizationType.Q5_K: {0: 0.0025, 2: 0.03},
    GGMLQuantizationType.Q6_K: {208: 0.0005},
    GGMLQuantizationType.IQ4_NL: {0: 0.015},
    GGMLQuantizationType.IQ4_XS: {0: 0.0005},
}


def random_blocks(shape: tuple[int, ...], kind: GGMLQuantizationType, seed: int, std: float) -> NDArray[Any]:
    """Matrices of `shape` with weights of about `std`, as bytes; a row is a multiple of a block."""
    block, n_bytes = GGML_QUANT_SIZES[kind]
    *others, columns = shape
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, size=(math.prod(shape) // block, n_bytes), dtype=np.uint8)
    for place, scale in SCALES[kind].items():
        drawn = (rng.standard_normal(len(blocks)) * scale * std).astype("<f2")
        blocks[:, place : place + 2] = drawn.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*others, columns // block * n_bytes)
