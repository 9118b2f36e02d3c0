"""Makers of tiny GGUF models that rank: an encoder (BERT) and a decoder (Qwen 3), each with a classification head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import PoolingType

from tests.support import tiny_embedders, tiny_models
from tests.support.tiny_models import Metadata, TinyShape, write_model

# As Qwen3-Reranker's, in short.
TEMPLATE = (
    "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def write_tiny_cross_encoder(
    path: Path, *, labels: Sequence[str] = (), has_last_layer: bool = True, **options: Any
) -> Path:
    """Write a BERT whose first token is scored by two layers, once for each label; without labels there is one score.

    Without its last layer the head has no scores.
    """
    shape = tiny_embedders.encoder_shape(**options)
    return write_cross_encoder(
        path, shape, tiny_embedders.wordpiece_metadata(shape), labels=labels, has_last_layer=has_last_layer
    )


def write_cross_encoder(
    path: Path, shape: TinyShape, tokenizer: Metadata, *, labels: Sequence[str] = (), has_last_layer: bool = True
) -> Path:
    """As `write_tiny_cross_encoder`, with another vocabulary."""
    weights, n_embd, n_scores = tiny_embedders.encoder_weights(shape), shape.n_embd, max(1, len(labels))
    weights.normal("cls.weight", n_embd, n_embd)
    weights.constant("cls.bias", n_embd, value=0.01)
    if has_last_layer:
        weights.normal("cls.output.weight", n_scores, n_embd, gain=4.0)
        weights.constant("cls.output.bias", n_scores, value=-0.1)
    metadata = tiny_embedders.encoder_metadata(shape, PoolingType.RANK) | named(labels)
    return write_model(path, "bert", weights, metadata, tokenizer)


def write_tiny_qwen_ranker(path: Path, *, template: str | None = TEMPLATE, **options: Any) -> Path:
    """Write a Qwen 3 whose last token is scored: yes or no, as probabilities."""
    shape = TinyShape(**options)
    weights = tiny_embedders.decoder_weights(shape)
    weights.normal("cls.output.weight", 2, shape.n_embd, gain=2.0)
    metadata = tiny_models.attention_metadata(shape) | {"pooling_type": int(PoolingType.RANK)} | named(("yes", "no"))
    tokenizer = tiny_models.tokenizer_metadata(shape)
    if template is not None:
        tokenizer["tokenizer.chat_template.rerank"] = template
    return write_model(path, "qwen3", weights, metadata, tokenizer)


def named(labels: Sequence[str]) -> Metadata:
    return {"classifier.output_labels": list(labels)} if labels else {}
