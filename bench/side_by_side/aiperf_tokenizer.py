"""A Hugging Face tokenizer directory made from a GGUF's own byte-level vocabulary.

AIPerf always loads a tokenizer, to make prompts with, and by default from the network. With the model's own, a prompt's
length is what was asked for. The text is cut into words as GPT-2 does before the merges are applied, which differs from
newer models' way in numbers and white space only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf import GGUFReader, TokenType

FIELDS = ("model", "tokens", "merges", "token_type", "eos_token_id")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
LONGEST = 1_000_000


class UnsuitableVocabularyError(Exception):
    """The model's vocabulary is not byte-level BPE."""


def write_tokenizer(model: Path, folder: Path) -> Path:
    """Write the tokenizer into `folder`, unless it is there; its absolute path."""
    done = folder / "tokenizer_config.json"
    if not done.exists():
        vocabulary = read_vocabulary(model)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary), ensure_ascii=False))
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        done.write_text(json.dumps(tokenizer_config(vocabulary), indent=1))
    return folder.resolve()


def read_vocabulary(model: Path) -> dict[str, Any]:
    """The fields of the GGUF that make the tokenizer."""
    fields = GGUFReader(model).fields
    found = {name: fields[key].contents() for name in FIELDS if (key := f"tokenizer.ggml.{name}") in fields}
    if found.get("model") != "gpt2" or "merges" not in found:
        raise UnsuitableVocabularyError(f"{model.name}: {found.get('model')}, and AIPerf's kit needs byte-level BPE")
    return found


def tokenizer_json(vocabulary: dict[str, Any]) -> dict[str, Any]:
    """The content of tokenizer.json, in the format of Hugging Face's `tokenizers`."""
    tokens, types = vocabulary["tokens"], vocabulary["token_type"]
    special = [i for i, kind in enumerate(types) if kind == TokenType.CONTROL]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": vocabulary["merges"],
        },
    }


def tokenizer_config(vocabulary: dict[str, Any]) -> dict[str, Any]:
    end = vocabulary["tokens"][vocabulary["eos_token_id"]]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
        "model_max_length": LONGEST,
        "chat_template": CHAT_TEMPLATE,
    }
