"""Tiny models with a head of their own that guesses further tokens, and whose worth is known.

`write_tiny_heads` writes a glm4moe, and `write_tiny_window_heads` a mimo2: attention with a sliding window, and
llama.cpp hands out the head's states of a step's outputs only.

The head passes one half of its input on and adds nothing to it. `TOKEN` is the embedding of the last known token. So
the head says what follows this token alone, and the model says the same as far as its layers change little. `STATE` is
the hidden state before that token, from which the model chose it: the head repeats the last known token if and only if
it got the right state.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny_models import Metadata, TinyShape, Weights, attention_metadata, write_model

TOKEN, STATE = "token", "state"


def write_tiny_heads(
    path: Path,
    *,
    reads: str = TOKEN,
    strength: float = 1.0,
    nameless: bool = False,
    **options: Any,
) -> Path:
    """Write the model, whose head passes on the half of its input that it `reads`.

    A `nameless` file says that there is a head, and lacks its weights, as some published files do.
    """
    weights = layers(TinyShape(**options), strength)
    shape = weights.shape
    for block in (f"blk.{i}" for i in range(shape.n_layer)):
        weights[f"{block}.post_attention_norm.weight"] = weights.pop(f"{block}.ffn_norm.weight")
    if not nameless:
        add_head(weights, f"blk.{shape.n_layer}", reads)
    weights.untied_ends()
    experts = {"expert_count": 2, "expert_used_count": 1, "expert_shared_count": 1}
    metadata = head_metadata(shape) | experts | {"leading_dense_block_count": shape.n_layer}
    return write_model(path, "glm4moe", weights, metadata)


def write_tiny_window_heads(path: Path, *, reads: str = TOKEN, strength: float = 1.0, **options: Any) -> Path:
    """Write the other model, whose even layers see the last 32 tokens only; see `write_tiny_heads`."""
    weights = layers(TinyShape(**options), strength)
    shape = weights.shape
    head = f"blk.{shape.n_layer}"
    add_passing_on(weights, head, reads)
    weights.feed_forward(head)
    weights[f"{head}.ffn_down.weight"] *= np.float32(0.0)
    parts = [weights.pop(f"{head}.attn_{part}.weight") for part in ("q", "k", "v")]
    weights[f"{head}.attn_qkv.weight"] = np.concatenate(parts)
    weights.untied_ends()
    metadata = head_metadata(shape) | {
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [i % 2 == 0 for i in range(shape.n_layer + 1)],
    }
    return write_model(path, "mimo2", weights, metadata)


def layers(shape: TinyShape, strength: float) -> Weights:
    """Return the layers; `strength` is a factor of what they add: with 0 a token follows from the last one alone."""
    weights = Weights(shape)
    for block in weights.blocks():
        weights.attention(block)
        weights.feed_forward(block)
        for name in ("attn_output", "ffn_down"):
            weights[f"{block}.{name}.weight"] *= np.float32(strength)
    return weights


def head_metadata(shape: TinyShape) -> Metadata:
    return attention_metadata(shape) | {
        "block_count": shape.n_layer + 1,
        "nextn_predict_layers": 1,
        "expert_feed_forward_length": shape.n_ff,
        "attention.key_length": shape.n_embd // shape.n_head,
        "attention.value_length": shape.n_embd // shape.n_head,
    }


def add_head(weights: Weights, block: str, reads: str) -> None:
    """Add the layer of a glm4moe's head, whose attention and experts add nothing."""
    n_embd, n_ff = weights.shape.n_embd, weights.shape.n_ff
    add_passing_on(weights, block, reads)
    weights.constant(f"{block}.post_attention_norm.weight", n_embd)
    weights.normal(f"{block}.ffn_gate_inp.weight", 2, n_embd)
    weights.constant(f"{block}.exp_probs_b.bias", 2, value=0.0)
    for name in ("gate", "up"):
        weights.normal(f"{block}.ffn_{name}_exps.weight", 2, n_ff, n_embd)
        weights.normal(f"{block}.ffn_{name}_shexp.weight", n_ff, n_embd)
    weights.constant(f"{block}.ffn_down_exps.weight", 2, n_embd, n_ff, value=0.0)
    weights.constant(f"{block}.ffn_down_shexp.weight", n_embd, n_ff, value=0.0)


def add_passing_on(weights: Weights, block: str, reads: str) -> None:
    """Add attention that adds nothing, and what chooses between the halves of a head's input."""
    n_embd = weights.shape.n_embd
    weights.attention(block)
    weights[f"{block}.attn_output.weight"] *= np.float32(0.0)
    for name in ("attn_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"):
        weights.constant(f"{block}.{name}.weight", n_embd)
    halves = np.zeros((n_embd, 2 * n_embd), dtype=np.float32)
    halves[:, :n_embd] = np.eye(n_embd) * (reads == TOKEN)
    halves[:, n_embd:] = np.eye(n_embd) * (reads == STATE)
    weights[f"{block}.nextn.eh_proj.weight"] = halves
