"""Write a checkpoint as GGUF.

`python -m tools.demo_model.export --folder build/demo-model --output pyllmcancel/models/stdlib-coder.gguf`
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from tokenizers import Tokenizer

from . import checkpoints, tokenizer
from .conversations import CHAT_TEMPLATE
from .model import Llama, ModelConfig
from .tokenizer import Special

NAME = "stdlib-coder"
DESCRIPTION = (
    "A demonstration model, trained on the source of Python's standard library alone, so that a server can be tried "
    "without downloading anything. Its Python is recognisable, not right."
)
MAX_BYTES = 8_000_000
logger = logging.getLogger("demo_model.export")


def _write_general(writer: GGUFWriter, model: Llama) -> None:
    writer.add_name(NAME)
    writer.add_basename(NAME)
    writer.add_size_label(f"{model.parameter_count() / 1e6:.1f}M")
    writer.add_description(DESCRIPTION)
    writer.add_license("PSF-2.0")
    writer.add_license_name("Python Software Foundation License 2 (the training text's)")
    writer.add_languages(["en"])
    writer.add_tags(["code", "python", "text-generation"])
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _write_shape(writer: GGUFWriter, config: ModelConfig) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_vocab_size(config.vocabulary)


def _write_vocabulary(writer: GGUFWriter, words: Tokenizer) -> None:
    description = json.loads(words.to_str())
    ids = words.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    control = {special.value for special in Special}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in control else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in description["model"]["merges"]])


def _write_special_tokens(writer: GGUFWriter) -> None:
    # Never prepended (below), but without a value llama.cpp reports an arbitrary token as the beginning of text.
    writer.add_bos_token_id(Special.END_OF_TEXT.id)
    writer.add_eos_token_id(Special.END_OF_TEXT.id)
    writer.add_eot_token_id(Special.TURN_END.id)
    writer.add_pad_token_id(Special.END_OF_TEXT.id)
    for name, special in (("pre", Special.FIM_PREFIX), ("suf", Special.FIM_SUFFIX), ("mid", Special.FIM_MIDDLE)):
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", special.id)
    # Rows of training start anywhere, without a mark; llama.cpp would add one by default.
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _write_tensors(writer: GGUFWriter, model: Llama) -> None:
    """Matrices as Q8_0, norms as F32; without `output.weight` llama.cpp uses the embeddings, which are shared here."""
    for name, value in model.state_dict().items():
        data = value.float().numpy()
        if data.ndim < 2:
            writer.add_tensor(name, data)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def export(model: Llama, words: Tokenizer, output: Path) -> int:
    """Write the model.

    Returns
    -------
    int
        Size of the file in bytes.

    Raises
    ------
    ValueError
        If the file is larger than a package should carry.
    """
    partial = output.with_suffix(".partial")
    writer = GGUFWriter(partial, "llama")
    _write_general(writer, model)
    _write_shape(writer, model.config)
    _write_vocabulary(writer, words)
    _write_special_tokens(writer)
    _write_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = partial.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{partial} has {size} bytes, more than {MAX_BYTES}")
    # A server may have the former file mapped: replacing it leaves that mapping whole, writing into it would not.
    os.replace(partial, output)
    return size


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of training")
    parser.add_argument("--output", type=Path, required=True, help="GGUF file to write")
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="file in the folder")
    parser.add_argument("--averaged", action="store_true", help="the running average, better before the decay")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    model, progress = checkpoints.load_model(options.folder / options.checkpoint, options.averaged)
    size = export(model, tokenizer.load(options.folder / "tokenizer.json"), options.output)
    logger.info("%s: %d bytes, %d tokens seen", options.output, size, progress.tokens_seen)


if __name__ == "__main__":
    main()
