"""A LoRA adapter for the tiny llama: random low-rank changes of its attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.support.tiny_models import TinyShape


def write_tiny_adapter(path: Path, shape: TinyShape | None = None, *, rank: int = 4, seed: int = 1) -> Path:
    """Write the adapter; its tensors' shapes are numpy's, the reverse of ggml's."""
    shape = shape or TinyShape()
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for layer in range(shape.n_layer):
        name = f"blk.{layer}.attn_q.weight"
        writer.add_tensor(f"{name}.lora_a", random.standard_normal((rank, shape.n_embd)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", random.standard_normal((shape.n_embd, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
