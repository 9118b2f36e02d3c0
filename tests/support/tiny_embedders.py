"""Makers of tiny GGUF models that pool: an encoder (BERT) and a decoder (Qwen 3), in the style of `tiny_models`.

The encoder's vocabulary is BERT's WordPiece, cut to its special tokens and what follows its reserved ones: single
characters first, then their continuations, then the commonest words. Every text of Latin letters can be read with it,
and what cannot is ``[UNK]``, as with the whole one.
"""

from functools import cache
from pathlib import Path
from typing import Any

from gguf import PoolingType, TokenType

from tests.support import tiny_models
from tests.support.gguf_bytes import GgufBytes
from tests.support.tiny_models import TinyShape, Vocabulary, Weights, write_model

SPECIAL = {"[PAD]": "padding", "[UNK]": "unknown", "[CLS]": "bos", "[SEP]": "seperator", "[MASK]": "mask"}
FIRST_CHARACTER = 999  # in BERT's vocabulary; the tokens before it are special, or reserved
N_BERT_CONTEXT = 128


@cache
def load_wordpieces(size: int = 2048, path: Path = tiny_models.VOCABULARIES / "ggml-vocab-bert-bge.gguf") -> Vocabulary:
    """BERT's vocabulary, cut to `size` tokens."""
    kept = slice(FIRST_CHARACTER, FIRST_CHARACTER + size - len(SPECIAL))
    tokens: list[str] = GgufBytes.read(path).listed("tokenizer.ggml.tokens", kept)
    if tokens[0] != "▁!":
        raise ValueError(f"{path}: not the vocabulary that is known here")
    return Vocabulary((*SPECIAL, *tokens), ())


def write_tiny_encoder(path: Path, *, pooling: PoolingType = PoolingType.MEAN, **options: Any) -> Path:
    """Write a BERT: it looks both ways, keeps no memory, and knows no position beyond its context."""
    shape = encoder_shape(**options)
    metadata = encoder_metadata(shape, pooling)
    return write_model(path, "bert", encoder_weights(shape), metadata, wordpiece_metadata(shape))


def encoder_shape(**options: Any) -> TinyShape:
    return TinyShape(**({"vocabulary": load_wordpieces(), "n_ctx_train": N_BERT_CONTEXT} | options))


def encoder_weights(shape: TinyShape) -> Weights:
    weights, n_embd = Weights(shape), shape.n_embd
    weights.normal("token_embd.weight", len(shape.vocabulary.tokens), n_embd, gain=n_embd**0.5)
    weights.normal("token_types.weight", 2, n_embd, gain=1.0)
    weights.normal("position_embd.weight", shape.n_ctx_train, n_embd, gain=0.3 * n_embd**0.5)
    affine(weights, "token_embd_norm")
    for i in range(shape.n_layer):
        encoder_layer(weights, f"blk.{i}")
    return weights


def encoder_metadata(shape: TinyShape, pooling: PoolingType) -> tiny_models.Metadata:
    return {
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": int(pooling),
    }


def encoder_layer(weights: Weights, block: str) -> None:
    n_embd, n_ff = weights.shape.n_embd, weights.shape.n_ff
    for name, rows, columns in (
        ("attn_q", n_embd, n_embd),
        ("attn_k", n_embd, n_embd),
        ("attn_v", n_embd, n_embd),
        ("attn_output", n_embd, n_embd),
        ("ffn_up", n_ff, n_embd),
        ("ffn_down", n_embd, n_ff),
    ):
        weights.normal(f"{block}.{name}.weight", rows, columns, gain=2.0)
        weights.constant(f"{block}.{name}.bias", rows, value=0.01)
    affine(weights, f"{block}.attn_output_norm")
    affine(weights, f"{block}.layer_output_norm")


def affine(weights: Weights, name: str) -> None:
    weights.constant(f"{name}.weight", weights.shape.n_embd)
    weights.constant(f"{name}.bias", weights.shape.n_embd, value=0.02)


def wordpiece_metadata(shape: TinyShape) -> tiny_models.Metadata:
    tokens = shape.vocabulary.tokens
    kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    ids = {f"tokenizer.ggml.{role}_token_id": shape.vocabulary.id_of(token) for token, role in SPECIAL.items()}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "bert-bge",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.token_type_count": 2,
    } | ids


def write_tiny_decoder(path: Path, *, pooling: PoolingType = PoolingType.LAST, **options: Any) -> Path:
    """Write a Qwen 3 that pools: it looks back only, and each text ends with EOS, whose vector is the text's."""
    shape = TinyShape(**options)
    metadata = tiny_models.attention_metadata(shape) | {"pooling_type": int(pooling)}
    tokenizer = tiny_models.tokenizer_metadata(shape) | {"tokenizer.ggml.add_eos_token": True}
    return write_model(path, "qwen3", decoder_weights(shape), metadata, tokenizer)


def decoder_weights(shape: TinyShape) -> Weights:
    weights = Weights(shape)
    for block in weights.blocks():
        weights.attention(block)
        weights.constant(f"{block}.attn_q_norm.weight", shape.n_embd // shape.n_head)
        weights.constant(f"{block}.attn_k_norm.weight", shape.n_embd // shape.n_head)
        weights.feed_forward(block)
    weights.untied_ends()
    return weights
