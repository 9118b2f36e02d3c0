"""Stand-ins for the models of llama.cpp's server tests, which are downloaded there and not available here.

Random weights say random words. But the tokenizer is of the same kind as their model's, SentencePiece with a token that
begins every text, so that all can pass that does not depend on what the model was taught.
"""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader

from pyllmcancel.models import packaged_model_path
from tests.support.tiny_embedders import write_tiny_encoder
from tests.support.tiny_models import (
    CHAT_TEMPLATE,
    VOCABULARIES,
    Metadata,
    TinyShape,
    Vocabulary,
    attention_metadata,
    llama_weights,
    write_model,
)

N_TOKENS = 2048
N_SPECIAL = 3  # <unk>, <s>, </s>: the first ones
N_CTX_TRAIN = 8192


def write_stand_ins(folder: Path) -> dict[str, Path]:
    """Files by the name of the repository that the tests ask for."""
    return {
        "ggml-org/test-model-stories260K": write_sentence_piece_llama(folder / "stories.gguf"),
        "ggml-org/test-model-stories260K-infill": packaged_model_path(),
        "ggml-org/models": write_tiny_encoder(folder / "encoder.gguf", n_ctx_train=512),
    }


def write_sentence_piece_llama(path: Path) -> Path:
    """Write a llama with the beginning of Llama 2's vocabulary: special tokens, bytes, and the first pieces."""
    fields = GGUFReader(VOCABULARIES / "ggml-vocab-llama-spm.gguf").fields
    first = slice(N_TOKENS)
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents(first)
    shape = TinyShape(vocabulary=Vocabulary(tuple(tokens), ()), n_ctx_train=N_CTX_TRAIN, chat_template=CHAT_TEMPLATE)
    weights = llama_weights(shape)
    # An answer ends when the test says so.
    weights["output.weight"][:N_SPECIAL] = 0.0
    tokenizer: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": fields["tokenizer.ggml.scores"].contents(first),
        "tokenizer.ggml.token_type": fields["tokenizer.ggml.token_type"].contents(first),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return write_model(path, "llama", weights, attention_metadata(shape), tokenizer)
