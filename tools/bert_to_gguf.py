"""Convert a sentence-transformers folder that holds a BERT into a GGUF file, with numpy alone.

    python tools/bert_to_gguf.py all-MiniLM-L6-v2/ all-MiniLM-L6-v2.gguf

Needs ``config.json``, ``vocab.txt``, ``model.safetensors`` and ``1_Pooling/config.json``.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, LlamaFileType, PoolingType, TokenType
from numpy.typing import NDArray

NAMES = (
    (r"embeddings\.word_embeddings\.", "token_embd."),
    (r"embeddings\.position_embeddings\.", "position_embd."),
    (r"embeddings\.token_type_embeddings\.", "token_types."),
    (r"embeddings\.LayerNorm\.", "token_embd_norm."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.query\.", r"blk.\1.attn_q."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.key\.", r"blk.\1.attn_k."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.value\.", r"blk.\1.attn_v."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"blk.\1.attn_output."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"blk.\1.attn_output_norm."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"blk.\1.ffn_up."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"blk.\1.ffn_down."),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"blk.\1.layer_output_norm."),
)
SPECIAL = {"[PAD]": "padding", "[UNK]": "unknown", "[CLS]": "cls", "[SEP]": "seperator", "[MASK]": "mask"}
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def main(folder: Path, target: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(target, "bert")
    writer.add_name(config.get("_name_or_path") or folder.name)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling_of(json.loads((folder / "1_Pooling" / "config.json").read_text())))
    add_vocabulary(writer, (folder / "vocab.txt").read_text("utf-8").splitlines(), config["type_vocab_size"])
    for name, values in tensors(folder / "model.safetensors"):
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pooling_of(config: dict[str, Any]) -> PoolingType:
    for key, pooling in (
        ("pooling_mode_mean_tokens", PoolingType.MEAN),
        ("pooling_mode_cls_token", PoolingType.CLS),
        ("pooling_mode_lasttoken", PoolingType.LAST),
    ):
        if config.get(key):
            return pooling
    raise SystemExit("this way of pooling is not known")


def add_vocabulary(writer: GGUFWriter, tokens: list[str], n_types: int) -> None:
    """WordPiece as llama.cpp wants it: a mark where a word begins, none where it goes on."""
    writer.add_tokenizer_model("bert")
    writer.add_token_list([spelt(token) for token in tokens])
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_type_count(n_types)
    for token, role in SPECIAL.items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", tokens.index(token))
    writer.add_bos_token_id(tokens.index("[CLS]"))


def spelt(token: str) -> str:
    if re.fullmatch(r"\[.+\]", token):
        return token
    return token.removeprefix("##") if token.startswith("##") else f"▁{token}"


def tensors(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """The encoder's tensors, under llama.cpp's names; what only pre-training needs is left out."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    for name, entry in header.items():
        renamed = new_name(name)
        if renamed is not None:
            begin, end = entry["data_offsets"]
            yield renamed, data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def new_name(name: str) -> str | None:
    for pattern, replacement in NAMES:
        renamed, count = re.subn(rf"^(?:bert\.)?{pattern}", replacement, name)
        if count:
            return renamed
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
