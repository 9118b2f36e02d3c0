"""Shapes of published models: their sizes, and which tensors a file of that shape has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

EMBEDDING_STD = 0.02
LOGIT_STD = 2.5
SHARPNESS = 2.0
# Of what a matrix makes of an input of RMS 1; 1 where it is not named.
GAINS = {"attn_q": SHARPNESS, "attn_k": SHARPNESS, "attn_output": 2.0, "ffn_down": 2.0, "ssm_out": 2.0}
CONV_KERNEL = (0.1, 0.2, 0.3, 1.0)  # of every channel: mostly the newest token
QWEN3_ADDED = {
    151659: "<|fim_prefix|>",
    151660: "<|fim_middle|>",
    151661: "<|fim_suffix|>",
    151662: "<|fim_pad|>",
    151663: "<|repo_name|>",
    151664: "<|file_sep|>",
}


@dataclass(slots=True, frozen=True)
class Mamba:
    """Sizes of a hybrid's state-space layers (mamba2's), and which layers have attention instead."""

    n_head: int
    state_size: int
    attention_layers: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Shape:
    """A published model's sizes; embeddings are tied in all of them, as in most of the originals.

    `vocabulary` is one of llama.cpp's, padded with unused tokens to `n_vocab` as the original is; `added` are tokens
    that the original defines and the vocabulary has as padding.
    """

    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    rope_base: float
    rms_epsilon: float
    vocabulary: str
    eos_id: int
    added: Mapping[int, str] = field(default_factory=dict)
    mamba: Mamba | None = None

    def has_attention(self, layer: int) -> bool:
        return self.mamba is None or layer in self.mamba.attention_layers


# Of Qwen3, Llama 3.2 (here without its RoPE factors), SmolLM2 (here with StarCoder's vocabulary), stories15M and
# Granite 4.0 H 350M (a hybrid; here with StarCoder's vocabulary, half as large as its own, and without its scales),
# in the order of the fields: arch, layers, embedding, heads, KV heads, head size, feed-forward, vocabulary, context, …
SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "qwen3-1.7b": Shape("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "qwen3-8b": Shape("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "qwen3-32b": Shape("qwen3", 64, 5120, 64, 8, 128, 25600, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "llama-1b": Shape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, 1e-5, "llama-bpe", 128009),
    "135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, "starcoder", 0),
    "15m": Shape("llama", 6, 288, 6, 6, 48, 768, 32000, 256, 1e4, 1e-5, "llama-spm", 2),
    "granite-h-350m": Shape(
        *("granitehybrid", 32, 768, 12, 4, 64, 2048, 49152, 32768, 1e4, 1e-5, "starcoder", 0),
        mamba=Mamba(n_head=48, state_size=128, attention_layers=(10, 13, 17, 27)),
    ),
}


def matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Yield name, rows and columns of every matrix; columns are what the layer's input has."""
    n_embd, n_q, n_kv = shape.n_embd, shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    yield "token_embd", shape.n_vocab, n_embd
    for i in range(shape.n_layer):
        if shape.has_attention(i):
            yield f"blk.{i}.attn_q", n_q, n_embd
            yield f"blk.{i}.attn_k", n_kv, n_embd
            yield f"blk.{i}.attn_v", n_kv, n_embd
            yield f"blk.{i}.attn_output", n_embd, n_q
        elif shape.mamba is not None:
            n_inner = 2 * n_embd
            yield f"blk.{i}.ssm_in", 2 * n_inner + 2 * shape.mamba.state_size + shape.mamba.n_head, n_embd
            yield f"blk.{i}.ssm_out", n_embd, n_inner
        yield f"blk.{i}.ffn_gate", shape.n_ff, n_embd
        yield f"blk.{i}.ffn_up", shape.n_ff, n_embd
        yield f"blk.{i}.ffn_down", n_embd, shape.n_ff


def constants(shape: Shape) -> Iterator[tuple[str, FloatArray]]:
    """Yield full name and values of every tensor that is not drawn; all are F32.

    The output's norm makes up for the small embeddings in the logits.
    """
    yield "output_norm.weight", _full(shape.n_embd, value=LOGIT_STD / (EMBEDDING_STD * shape.n_embd**0.5))
    for i in range(shape.n_layer):
        yield f"blk.{i}.attn_norm.weight", _full(shape.n_embd)
        yield f"blk.{i}.ffn_norm.weight", _full(shape.n_embd)
        if shape.arch == "qwen3":
            yield f"blk.{i}.attn_q_norm.weight", _full(shape.head_size, value=SHARPNESS)
            yield f"blk.{i}.attn_k_norm.weight", _full(shape.head_size, value=SHARPNESS)
        if shape.mamba is not None and not shape.has_attention(i):
            yield from mamba_constants(f"blk.{i}", 2 * shape.n_embd, shape.mamba)


def mamba_constants(block: str, n_inner: int, mamba: Mamba) -> Iterator[tuple[str, FloatArray]]:
    """Yield what a state-space layer has besides its two matrices; its heads forget at different speeds."""
    n_channels = n_inner + 2 * mamba.state_size
    yield f"{block}.ssm_conv1d.weight", np.tile(np.array(CONV_KERNEL, dtype=np.float32), (n_channels, 1))
    yield f"{block}.ssm_conv1d.bias", _full(n_channels, value=0.0)
    yield f"{block}.ssm_dt.bias", _full(mamba.n_head, value=-4.0)
    # A head's state decays by exp(A * softplus(-4)) a token: it lasts for 3 to 50 of them.
    yield f"{block}.ssm_a", -np.linspace(1.0, 16.0, mamba.n_head, dtype=np.float32)[:, None]
    yield f"{block}.ssm_d", _full(mamba.n_head, 1)
    yield f"{block}.ssm_norm.weight", _full(1, n_inner)


def _full(*size: int, value: float = 1.0) -> FloatArray:
    return np.full(size, value, dtype=np.float32)


def model_metadata(shape: Shape) -> dict[str, Any]:
    """The file's keys that tell llama.cpp the shape."""
    keys: dict[str, Any] = {
        "context_length": shape.n_ctx_train,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.layer_norm_rms_epsilon": shape.rms_epsilon,
        "rope.dimension_count": shape.head_size,
        "rope.freq_base": shape.rope_base,
        "vocab_size": shape.n_vocab,
    }
    if shape.mamba is not None:
        heads = [shape.n_head_kv if shape.has_attention(i) else 0 for i in range(shape.n_layer)]
        keys |= {
            "attention.head_count_kv": heads,
            "rope.scaling.finetuned": False,  # here it means that there are no positions
            "ssm.conv_kernel": len(CONV_KERNEL),
            "ssm.inner_size": 2 * shape.n_embd,
            "ssm.state_size": shape.mamba.state_size,
            "ssm.time_step_rank": shape.mamba.n_head,
            "ssm.group_count": 1,
        }
    return {f"{shape.arch}.{key}": value for key, value in keys.items()}
