"""Read an exported model back, as the exact inverse of `export`."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from .model import Llama, ModelConfig
from .tokenizer import Special


def _value(reader: GGUFReader, key: str) -> int | float:
    return reader.fields[key].contents()  # type: ignore[no-any-return]


def _config(reader: GGUFReader) -> ModelConfig:
    return ModelConfig(
        vocabulary=int(_value(reader, "llama.vocab_size")),
        width=int(_value(reader, "llama.embedding_length")),
        layers=int(_value(reader, "llama.block_count")),
        heads=int(_value(reader, "llama.attention.head_count")),
        kv_heads=int(_value(reader, "llama.attention.head_count_kv")),
        hidden=int(_value(reader, "llama.feed_forward_length")),
        context=int(_value(reader, "llama.context_length")),
        rope_base=float(_value(reader, "llama.rope.freq_base")),
        norm_epsilon=float(_value(reader, "llama.attention.layer_norm_rms_epsilon")),
    )


def _tokenizer(reader: GGUFReader) -> Tokenizer:
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    merges: list[str] = reader.fields["tokenizer.ggml.merges"].contents()
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    words = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([special.value for special in Special])
    return words


def read(path: Path) -> tuple[Llama, Tokenizer]:
    """Rebuild model and tokenizer from a GGUF file, with the weights that its quantisation left.

    Activations stay in single precision; llama.cpp also rounds them to 8 bits, which changes logits by about 1 %.
    """
    reader = GGUFReader(path)
    model = Llama(_config(reader))
    weights = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    model.load_state_dict(weights)
    return model.eval(), _tokenizer(reader)
