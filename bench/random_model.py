"""Write a GGUF model of a real shape with random weights.

``python -m bench.random_model --shape qwen3-0.6b --type q4_0 OUT.gguf``; ``--help`` lists the other shapes.

How fast a model computes depends on its shape and its number format, not on what it knows, so a benchmark needs no
download. Quantised blocks are drawn as such, scale and integers, instead of being quantised from floats: a 0.6B model
takes seconds, most of them for reading the vocabulary. The same shape, type and seed give the same file.

Weights keep what a layer adds at a root mean square of about 1, hence logits finite and spread (a standard deviation
of about `LOGIT_STD`), and attention sharp enough for the prompt to matter. Rows of special and unused tokens are a
tenth as large as the others, so that a greedy benchmark is never cut short by an end-of-text token. Every matrix gets
the type asked for, the embeddings included (what llama.cpp calls "pure"); norms are F32.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped]

FloatArray = NDArray[np.float32]

VOCABULARIES = Path(__file__).resolve().parents[1] / "vendor" / "llama.cpp" / "models"
BLOCK = 32
SUPER_BLOCK = 256
EMBEDDING_STD = 0.02
LOGIT_STD = 2.5
SHARPNESS = 2.0
# The share of an input of RMS 1 that a matrix keeps; 1 if it is not named.
GAINS = {"attn_q": SHARPNESS, "attn_k": SHARPNESS, "attn_output": 2.0, "ffn_down": 2.0}
QWEN3_ADDED = {
    151659: "<|fim_prefix|>",
    151660: "<|fim_middle|>",
    151661: "<|fim_suffix|>",
    151662: "<|fim_pad|>",
    151663: "<|repo_name|>",
    151664: "<|file_sep|>",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(slots=True, frozen=True)
class Shape:
    """A published model's sizes; embeddings are tied in all of them.

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
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_expert: int = 0
    l_cache: int = 0  # columns of a convolution, in the layers of a hybrid that have no attention
    attention: tuple[int, ...] = ()  # layers of a hybrid that have attention

    def attends(self, layer: int) -> bool:
        return not self.l_cache or layer in self.attention


class Matrix(NamedTuple):
    """A tensor that is drawn; `columns` are what the layer's input has. Experts have one of it each."""

    name: str
    rows: int
    columns: int
    n_expert: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_expert, self.rows, self.columns) if self.n_expert > 1 else (self.rows, self.columns)


# The shapes of Qwen3, SmolLM2 (here with StarCoder's vocabulary) and LFM2 (with Qwen's), in the order of the fields:
# arch, layers, embedding, heads, KV heads, head size, feed-forward, vocabulary, context, …
SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "qwen3-8b": Shape("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "qwen3-32b": Shape("qwen3", 64, 5120, 64, 8, 128, 25600, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
    "qwen3-30b-a3b": Shape(
        *("qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, 40960, 1e6, 1e-6, "qwen2", 151645, QWEN3_ADDED),
        n_expert=128,
        n_expert_used=8,
        n_ff_expert=768,
    ),
    "lfm2-2.6b": Shape(
        *("lfm2", 30, 2048, 32, 8, 64, 10752, 151936, 128000, 1e6, 1e-5, "qwen2", 151645, QWEN3_ADDED),
        l_cache=3,
        attention=(2, 5, 9, 13, 17, 21, 24, 27),
    ),
    "135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, "starcoder", 0),
}


def matrices(shape: Shape) -> Iterator[Matrix]:
    n_embd, n_q, n_kv = shape.n_embd, shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    yield Matrix("token_embd", shape.n_vocab, n_embd)
    for i in range(shape.n_layer):
        if shape.attends(i):
            yield Matrix(f"blk.{i}.attn_q", n_q, n_embd)
            yield Matrix(f"blk.{i}.attn_k", n_kv, n_embd)
            yield Matrix(f"blk.{i}.attn_v", n_kv, n_embd)
            yield Matrix(f"blk.{i}.attn_output", n_embd, n_q)
        else:
            yield Matrix(f"blk.{i}.shortconv.in_proj", 3 * n_embd, n_embd)
            yield Matrix(f"blk.{i}.shortconv.out_proj", n_embd, n_embd)
        kind, n_ff, n_expert = ("_exps", shape.n_ff_expert, shape.n_expert) if shape.n_expert else ("", shape.n_ff, 1)
        yield Matrix(f"blk.{i}.ffn_gate{kind}", n_ff, n_embd, n_expert)
        yield Matrix(f"blk.{i}.ffn_up{kind}", n_ff, n_embd, n_expert)
        yield Matrix(f"blk.{i}.ffn_down{kind}", n_embd, n_ff, n_expert)


def constants(shape: Shape) -> Iterator[tuple[str, FloatArray]]:
    """Yield full name and values of every tensor that is not quantised; all are F32.

    The output's norm makes up for the small embeddings in the logits.
    """
    output_norm = "token_embd_norm" if shape.arch == "lfm2" else "output_norm"
    yield f"{output_norm}.weight", _full(shape.n_embd, value=LOGIT_STD / (EMBEDDING_STD * shape.n_embd**0.5))
    for i in range(shape.n_layer):
        yield f"blk.{i}.attn_norm.weight", _full(shape.n_embd)
        yield f"blk.{i}.ffn_norm.weight", _full(shape.n_embd)
        if shape.n_expert:  # routers choose evenly
            rng = np.random.default_rng([i, shape.n_expert])
            router = rng.standard_normal((shape.n_expert, shape.n_embd), dtype=np.float32) / shape.n_embd**0.5
            yield f"blk.{i}.ffn_gate_inp.weight", router
        if not shape.attends(i):
            yield f"blk.{i}.shortconv.conv.weight", _full(shape.n_embd, shape.l_cache, value=shape.l_cache**-0.5)
        elif shape.arch != "llama":
            yield f"blk.{i}.attn_q_norm.weight", _full(shape.head_size, value=SHARPNESS)
            yield f"blk.{i}.attn_k_norm.weight", _full(shape.head_size, value=SHARPNESS)


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
    if shape.n_expert:
        keys |= {"expert_count": shape.n_expert, "expert_used_count": shape.n_expert_used}
        keys["expert_feed_forward_length"] = shape.n_ff_expert
    if shape.l_cache:
        keys["shortconv.l_cache"] = shape.l_cache
        keys["attention.head_count_kv"] = [shape.n_head_kv * shape.attends(i) for i in range(shape.n_layer)]
    return {f"{shape.arch}.{key}": value for key, value in keys.items()}


def _f32(rng: np.random.Generator, shape: tuple[int, int], std: FloatArray) -> NDArray[Any]:
    return rng.standard_normal(shape, dtype=np.float32) * std


def _f16(rng: np.random.Generator, shape: tuple[int, int], std: FloatArray) -> NDArray[Any]:
    return _f32(rng, shape, std).astype(np.float16)


def _q8_0(rng: np.random.Generator, shape: tuple[int, int], std: FloatArray) -> NDArray[Any]:
    """Draw blocks of an F16 scale and 32 bytes: a weight is ``scale * byte``, bytes uniform over -127 … 127."""
    blocks = np.empty((shape[0], shape[1] // BLOCK), dtype=[("scale", "<f2"), ("values", "i1", BLOCK)])
    blocks["scale"] = std / np.std(np.arange(-127, 128))
    blocks["values"] = rng.integers(-127, 128, size=blocks["values"].shape, dtype=np.int8)
    return blocks.view(np.uint8)


def _q4_0(rng: np.random.Generator, shape: tuple[int, int], std: FloatArray) -> NDArray[Any]:
    """Draw blocks of an F16 scale and 32 nibbles: a weight is ``scale * (nibble - 8)``.

    Nibbles are uniform but for 0, which becomes 8: uniform ones have a mean of -0.5, which the wide sums of a matrix
    product would turn into an offset larger than the signal.
    """
    nibbles = np.array([8, *range(1, 16)], dtype=np.uint8)
    pairs = (nibbles[:, None] << 4 | nibbles).ravel()
    blocks = np.empty((shape[0], shape[1] // BLOCK), dtype=[("scale", "<f2"), ("values", "u1", BLOCK // 2)])
    blocks["scale"] = std / np.std(nibbles.astype(np.float32))
    blocks["values"] = pairs[rng.integers(0, 256, size=blocks["values"].shape, dtype=np.uint8)]
    return blocks.view(np.uint8)


def _q4_k(rng: np.random.Generator, shape: tuple[int, int], std: FloatArray) -> NDArray[Any]:
    """Draw blocks of 256: a weight is ``scale * 48 * (nibble - 7.5)``; all 6-bit scales and offsets are 48."""
    nibbles = np.arange(16) - 7.5
    parts = [("scale", "<f2"), ("offset", "<f2"), ("scales", "u1", 12), ("values", "u1", SUPER_BLOCK // 2)]
    blocks = np.empty((shape[0], shape[1] // SUPER_BLOCK), dtype=parts)
    blocks["scale"] = std / (48 * np.std(nibbles))
    blocks["offset"] = blocks["scale"] * np.float16(7.5)
    blocks["scales"] = [0xF0] * 8 + [0] * 4  # 48 is 0x30: its low bits, then the upper two of four bytes further on
    blocks["values"] = rng.integers(0, 256, size=blocks["values"].shape, dtype=np.uint8)
    return blocks.view(np.uint8)


@dataclass(slots=True, frozen=True)
class NumberFormat:
    """How a matrix is stored; `draw` takes a generator, (rows, columns) and deviations of shape (rows, 1)."""

    kind: GGMLQuantizationType
    file_type: LlamaFileType
    draw: Callable[[np.random.Generator, tuple[int, int], FloatArray], NDArray[Any]]


FORMATS = {
    "f32": NumberFormat(GGMLQuantizationType.F32, LlamaFileType.ALL_F32, _f32),
    "f16": NumberFormat(GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16, _f16),
    "q8_0": NumberFormat(GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0, _q8_0),
    "q4_k": NumberFormat(GGMLQuantizationType.Q4_K, LlamaFileType.MOSTLY_Q4_K_M, _q4_k),
    "q4_0": NumberFormat(GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0, _q4_0),
}


def tokenizer_metadata(shape: Shape) -> dict[str, Any]:
    """Read the vocabulary's keys, name the added tokens, and mark what is left of the padding as unused."""
    path = VOCABULARIES / f"ggml-vocab-{shape.vocabulary}.gguf"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run tools/fill_vendor.py, which fetches llama.cpp's tree")
    fields = GGUFReader(path).fields
    keys = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    if len(tokens) != shape.n_vocab:
        raise ValueError(f"{path} has {len(tokens)} tokens instead of {shape.n_vocab}")
    for i, token in enumerate(tokens):
        if i in shape.added:
            tokens[i], types[i] = shape.added[i], TokenType.CONTROL
        elif token == f"[PAD{i}]":
            types[i] = TokenType.UNUSED
    return keys | {"tokenizer.ggml.eos_token_id": shape.eos_id, "tokenizer.chat_template": CHAT_TEMPLATE}


def write_random_model(path: Path, shape: Shape, number_format: NumberFormat, seed: int = 0) -> None:
    """Write the model to `path`, which is replaced only once the file is complete; progress goes to stderr."""
    partial = path.with_name(f"{path.name}.partial")
    total = sum(math.prod(matrix.shape) for matrix in matrices(shape))
    with tqdm(desc="vocabulary", total=total, unit="weight", unit_scale=True) as bar:
        tokenizer = tokenizer_metadata(shape)
        ordinary = np.isin(tokenizer["tokenizer.ggml.token_type"], (TokenType.NORMAL, TokenType.BYTE))
        token_std = EMBEDDING_STD * np.where(ordinary, 1.0, 0.1).astype(np.float32)[:, None]
        writer = GGUFWriter(partial, shape.arch)
        write_header(writer, shape, number_format, model_metadata(shape) | tokenizer)
        bar.set_description("weights")
        for matrix in matrices(shape):
            rng = np.random.default_rng([seed, zlib.crc32(matrix.name.encode())])
            gain = GAINS.get(matrix.name.rpartition(".")[2].removesuffix("_exps"), 1.0)
            rows = matrix.rows * matrix.n_expert
            std = np.full((rows, 1), gain / matrix.columns**0.5, dtype=np.float32)
            drawn = number_format.draw(rng, (rows, matrix.columns), token_std if matrix.name == "token_embd" else std)
            writer.write_tensor_data(drawn)
            bar.update(drawn.shape[0] * matrix.columns)
    writer.close()
    partial.replace(path)


def write_header(writer: GGUFWriter, shape: Shape, number_format: NumberFormat, metadata: Mapping[str, Any]) -> None:
    """Write everything but the matrices, which follow one by one: no more than one is ever in memory."""
    for key, value in metadata.items():
        writer.add_key_value(key, value, GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value))
    writer.add_name(f"random {shape.arch}, {shape.n_layer} x {shape.n_embd}")
    writer.add_quantization_version(2)
    writer.add_file_type(number_format.file_type)
    f32, kind = np.dtype(np.float32), number_format.kind
    for name, values in constants(shape):
        writer.add_tensor_info(name, values.shape, f32, values.nbytes)
    for matrix in matrices(shape):
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        n_bytes = math.prod(matrix.shape) // block_size * block_bytes
        writer.add_tensor_info(f"{matrix.name}.weight", matrix.shape, f32, n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, values in constants(shape):
        writer.write_tensor_data(values)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.random_model", description="Write a random model.")
    parser.add_argument("path", type=Path, metavar="OUT.gguf")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    parser.add_argument("--type", choices=FORMATS, default="q4_0", help="of all matrices; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args(arguments)
    write_random_model(options.path, SHAPES[options.shape], FORMATS[options.type], options.seed)


if __name__ == "__main__":
    main()
