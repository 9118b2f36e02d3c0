"""LoRA adapters with random weights, for any model of a GGUF file.

What one adds to a matrix is about as large as a random matrix of its size would be: enough for other greedy answers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tests.support.tiny_models import finish

# Projections that the tests' models have, of attention and of recurrent layers.
RANK = 4
ADAPTED = ("attn_q.weight", "attn_output.weight", "ffn_down.weight", "ssm_out.weight")


def write_adapter(
    path: Path,
    model: Path,
    *,
    seed: int = 1,
    invocation: Sequence[int] = (),
    task_name: str = "",
    prompt_prefix: str = "",
) -> Path:
    """Write an adapter for `model`; with `invocation` tokens, an activated one."""
    reader = GGUFReader(model)
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    if task_name:
        writer.add_string("adapter.lora.task_name", task_name)
    if prompt_prefix:
        writer.add_string("adapter.lora.prompt_prefix", prompt_prefix)
    if invocation:
        kinds = (GGUFValueType.ARRAY, GGUFValueType.UINT32)
        writer.add_key_value("adapter.alora.invocation_tokens", list(invocation), *kinds)
    for tensor in reader.tensors:
        if tensor.name.endswith(ADAPTED):
            n_in, n_out = (int(size) for size in tensor.shape)
            a = random.standard_normal((RANK, n_in))
            b = random.standard_normal((n_out, RANK)) / np.sqrt(n_in * RANK)
            writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float32))
    finish(writer)
    return path
