"""Makers of GGUF files that must be refused, each broken in one way, for tests of errors."""

from pathlib import Path

from .tiny_models import TinyShape, attention_metadata, llama_weights, mamba_metadata, write_model, write_tiny_llama


def write_not_gguf(path: Path) -> Path:
    path.write_text("This is not a model.\n" * 100)
    return path


def write_cut_header(path: Path) -> Path:
    """Write a tiny llama that ends in the middle of its metadata, as a broken download does."""
    return keep(10_000, write_tiny_llama(path))


def write_cut_tensors(path: Path) -> Path:
    """Write a tiny llama whose header is whole and whose last tensor ends in the middle."""
    return keep(-50_000, write_tiny_llama(path))


def keep(size: int, path: Path) -> Path:
    """Keep the first `size` bytes of the file; a negative size says how many to lose."""
    path.write_bytes(path.read_bytes()[:size])
    return path


def write_without_vocabulary(path: Path, *, declared: bool) -> Path:
    """Write a tiny llama without tokens: `declared` as such (llama.cpp loads it) or just missing (it does not)."""
    weights = llama_weights(TinyShape())
    tokenizer = {"tokenizer.ggml.model": "no_vocab"} if declared else {}
    metadata = attention_metadata(weights.shape) | {"vocab_size": len(weights.shape.vocabulary.tokens)}
    return write_model(path, "llama", weights, metadata, tokenizer)


def write_unknown_architecture(path: Path) -> Path:
    """Write a well-formed file of an architecture that llama.cpp does not know."""
    weights = llama_weights(TinyShape())
    return write_model(path, "unheard-of", weights, attention_metadata(weights.shape))


def write_hybrid_of_one_kind(path: Path) -> Path:
    """Write a jamba all of whose layers are attention: llama.cpp loads it, and ends the process at its first step."""
    shape = TinyShape()
    weights = llama_weights(shape)
    heads = {"attention.head_count_kv": [shape.n_head_kv] * shape.n_layer}
    return write_model(path, "jamba", weights, attention_metadata(shape) | mamba_metadata(shape) | heads)
