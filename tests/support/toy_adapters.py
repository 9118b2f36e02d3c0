"""LoRA adapters with random weights, for any model of a GGUF file.

    python -m tests.support.toy_adapters MODEL.gguf ADAPTER.gguf [--seed 1] [--strength 1.0] [--invocation 12,34]

What an adapter adds to a matrix is about as large as a random matrix of its size would be, times the strength: strong
enough that greedy answers differ.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tests.support.tiny_models import finish

# Projections that the tests' models have, of attention and of recurrent layers.
ADAPTED = ("attn_q.weight", "attn_output.weight", "ffn_down.weight", "ssm_out.weight")


def write_adapter(
    path: Path,
    model: Path,
    *,
    rank: int = 4,
    seed: int = 1,
    strength: float = 1.0,
    invocation: Sequence[int] = (),
    task_name: str = "",
    prompt_prefix: str = "",
    dtype: type[np.floating] = np.float32,
) -> Path:
    """Write an adapter for `model`; with `invocation` tokens, an activated one."""
    reader = GGUFReader(model)
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    if task_name:
        writer.add_string("adapter.lora.task_name", task_name)
    if prompt_prefix:
        writer.add_string("adapter.lora.prompt_prefix", prompt_prefix)
    if invocation:
        writer.add_key_value(
            "adapter.alora.invocation_tokens", list(invocation), GGUFValueType.ARRAY, GGUFValueType.UINT32
        )
    for tensor in reader.tensors:
        if tensor.name.endswith(ADAPTED):
            n_in, n_out = (int(size) for size in tensor.shape)
            a = random.standard_normal((rank, n_in))
            b = random.standard_normal((n_out, rank)) * strength / np.sqrt(n_in * rank)
            writer.add_tensor(f"{tensor.name}.lora_a", a.astype(dtype))
            writer.add_tensor(f"{tensor.name}.lora_b", b.astype(dtype))
    finish(writer)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--invocation", default="", help="tokens that activate the adapter, separated by commas")
    given = parser.parse_args()
    tokens = [int(token) for token in given.invocation.split(",") if token]
    write_adapter(
        given.adapter, given.model, rank=given.rank, seed=given.seed, strength=given.strength, invocation=tokens
    )


if __name__ == "__main__":
    main()
