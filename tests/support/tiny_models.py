"""Makers of tiny GGUF models, written when a test needs them: random F32 weights around a small, real vocabulary.

One maker per kind of memory that llama.cpp has, since what an aborted step leaves behind depends on it:
`write_tiny_llama` (attention), `write_tiny_sliding_window` (gemma2), `write_tiny_recurrent` (mamba) and
`write_tiny_hybrid` (jamba: mamba and attention in turn). Files that must be refused are written by `broken_models`.

**The vocabulary** is GPT-2's, cut to its 256 bytes and its first merges. Whole, it and every other vocabulary in
llama.cpp's tree has 30,000 to 260,000 entries, and two matrices of that many rows would be 99 % of a tiny model. The
cut is exact, not an approximation: GPT-2 numbers its tokens by merge, so that token ``256 + i`` *is* what merge ``i``
makes, and the first merges with the tokens they make are a complete tokenizer (`load_vocabulary` checks this). Every
text can be encoded, and characters outside ASCII fall apart into several tokens, which is what a detokenizer's tests
want. The special tokens that GPT-2 lacks (turns of a chat, fill-in-the-middle) are appended.

**The weights** are drawn so that greedy output is lively: logits have a standard deviation of a few units, and
attention is sharp enough for the next token to depend on all of the prompt. The rows of special tokens are scaled down,
so that greedy decoding never chooses one and a generation ends when the test says so; to test an end by EOS, name a
token that the model is known to produce as ``eos_id``. A tensor depends on the seed and its own name, on nothing else.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

from tests.support.gguf_bytes import GgufBytes

VOCABULARIES = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "models"
SPECIAL_TOKENS: dict[str, tuple[str, ...]] = {
    "<|endoftext|>": ("bos", "eos", "padding"),
    "<|im_start|>": (),
    "<|im_end|>": ("eot",),
    **{f"<|fim_{name}|>": (f"fim_{name[:3]}",) for name in ("prefix", "suffix", "middle", "pad")},
    "<|repo_name|>": ("fim_rep",),
    "<|file_sep|>": ("fim_sep",),
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGIT_STD = 3.0
TIED_STD = 0.005
SHARPNESS = 2.0
CONV_KERNEL, STATE_SIZE, DT_RANK = 4, 16, 4
# Of llama.cpp's K-quants, which the gguf package reads but does not write: the bytes of a block at which its 16-bit
# scales lie, and how large such a scale is, for weights of about 1.
SCALES = {
    GGMLQuantizationType.Q4_K: {0: 0.005, 2: 0.03},
    GGMLQuantizationType.Q5_K: {0: 0.0025, 2: 0.03},
    GGMLQuantizationType.Q6_K: {208: 0.0005},
    GGMLQuantizationType.IQ4_NL: {0: 0.015},
    GGMLQuantizationType.IQ4_XS: {0: 0.0005},
}

Metadata = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary: tokens by id with the special ones last, and merges by rank."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def id_of(self, token: str) -> int:
        """Id of `token`, spelt in GPT-2's byte alphabet (a blank is ``Ġ``); ValueError if there is none."""
        return self.tokens.index(token)


@cache
def load_vocabulary(size: int = 1024, path: Path = VOCABULARIES / "ggml-vocab-gpt-2.gguf") -> Vocabulary:
    """Read GPT-2's vocabulary and cut it to `size` tokens, special ones included."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: run tools/fill_vendor.py, which fetches llama.cpp's tree")
    n_merges = size - 256 - len(SPECIAL_TOKENS)
    if n_merges < 1:
        raise ValueError(f"a vocabulary needs more than {256 + len(SPECIAL_TOKENS)} tokens, not {size}")
    file = GgufBytes.read(path)  # the package's reader takes seconds
    tokens: list[str] = file.listed("tokenizer.ggml.tokens", slice(256 + n_merges))
    merges: list[str] = file.listed("tokenizer.ggml.merges", slice(n_merges))
    if tokens[256:] != [merge.replace(" ", "") for merge in merges]:
        raise ValueError(f"{path}: its tokens are not numbered by merge, so it cannot be cut")
    return Vocabulary((*tokens, *SPECIAL_TOKENS), tuple(merges))


@dataclass(slots=True, frozen=True, kw_only=True)
class TinyShape:
    """The parts of a tiny model, which are the `options` of every maker.

    A layer without attention or feed-forward has no use for the sizes of these.
    """

    seed: int = 0
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    n_ctx_train: int = 2048
    vocabulary: Vocabulary = field(default_factory=load_vocabulary)
    chat_template: str | None = CHAT_TEMPLATE
    eos_id: int | None = None


class Weights(dict[str, NDArray[np.float32]]):
    """Tensors by name, in the order of the file; shapes are numpy's (rows, columns), the reverse of ggml's."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.shape = shape

    def normal(self, name: str, *size: int, gain: float = 1.0) -> None:
        """Add normal values of deviation ``gain / sqrt(columns)``: an input of RMS 1 gives an output of RMS `gain`."""
        rng = np.random.default_rng([self.shape.seed, zlib.crc32(name.encode())])
        self[name] = rng.standard_normal(size, dtype=np.float32) * np.float32(gain / size[-1] ** 0.5)

    def constant(self, name: str, *size: int, value: float = 1.0) -> None:
        self[name] = np.full(size, value, dtype=np.float32)

    def per_token(self, name: str, *, gain: float) -> None:
        """Add an (n_vocab, n_embd) matrix in which special tokens are a tenth as large: never the greedy choice."""
        self.normal(name, len(self.shape.vocabulary.tokens), self.shape.n_embd, gain=gain)
        self[name][-len(SPECIAL_TOKENS) :] *= np.float32(0.1)

    def blocks(self) -> Iterator[str]:
        """Prefixes of the layers' tensors; each gets the norm that every kind of layer begins with."""
        for block in (f"blk.{i}" for i in range(self.shape.n_layer)):
            self.constant(f"{block}.attn_norm.weight", self.shape.n_embd)
            yield block

    def untied_ends(self) -> None:
        self.per_token("token_embd.weight", gain=self.shape.n_embd**0.5)
        self.constant("output_norm.weight", self.shape.n_embd)
        self.per_token("output.weight", gain=LOGIT_STD)

    def attention(self, block: str) -> None:
        n_embd, n_kv = self.shape.n_embd, self.shape.n_embd // self.shape.n_head * self.shape.n_head_kv
        self.normal(f"{block}.attn_q.weight", n_embd, n_embd, gain=SHARPNESS)
        self.normal(f"{block}.attn_k.weight", n_kv, n_embd, gain=SHARPNESS)
        self.normal(f"{block}.attn_v.weight", n_kv, n_embd)
        self.normal(f"{block}.attn_output.weight", n_embd, n_embd, gain=2.0)

    def feed_forward(self, block: str) -> None:
        n_embd, n_ff = self.shape.n_embd, self.shape.n_ff
        self.constant(f"{block}.ffn_norm.weight", n_embd)
        self.normal(f"{block}.ffn_gate.weight", n_ff, n_embd)
        self.normal(f"{block}.ffn_up.weight", n_ff, n_embd)
        self.normal(f"{block}.ffn_down.weight", n_embd, n_ff, gain=2.0)

    def mamba(self, block: str) -> None:
        n_embd, n_inner = self.shape.n_embd, 2 * self.shape.n_embd
        self.normal(f"{block}.ssm_in.weight", 2 * n_inner, n_embd)
        self.normal(f"{block}.ssm_conv1d.weight", n_inner, CONV_KERNEL)
        self.constant(f"{block}.ssm_conv1d.bias", n_inner, value=0.0)
        self.normal(f"{block}.ssm_x.weight", DT_RANK + 2 * STATE_SIZE, n_inner)
        self.normal(f"{block}.ssm_dt.weight", n_inner, DT_RANK)
        self.constant(f"{block}.ssm_dt.bias", n_inner, value=-2.0)
        # The state decays by exp(A * softplus(-2)) a token. A must be negative; these let it last for 8 to 120 tokens,
        # longer than in real models, so that a wrong state shows in the output long after.
        decay = np.arange(1, STATE_SIZE + 1, dtype=np.float32) / STATE_SIZE
        self[f"{block}.ssm_a"] = np.tile(-decay, (n_inner, 1))
        self.constant(f"{block}.ssm_d", n_inner)
        self.normal(f"{block}.ssm_out.weight", n_embd, n_inner, gain=2.0)


def write_tiny_llama(path: Path, *, quantization: GGMLQuantizationType | None = None, **options: Any) -> Path:
    """Write a llama: attention in every layer; with a `quantization` of its matrices."""
    shape = TinyShape(**options)
    return write_model(path, "llama", llama_weights(shape), attention_metadata(shape), quantization=quantization)


def llama_weights(shape: TinyShape) -> Weights:
    weights = Weights(shape)
    for block in weights.blocks():
        weights.attention(block)
        weights.feed_forward(block)
    weights.untied_ends()
    return weights


def write_tiny_sliding_window(path: Path, *, window: int = 32, quantization: Any = None, **options: Any) -> Path:
    """Write a gemma2: layers 0, 2, … see the last `window` tokens only, the others all of them."""
    shape = TinyShape(**options)
    weights = Weights(shape)
    for block in weights.blocks():
        weights.attention(block)
        weights.feed_forward(block)
        weights.constant(f"{block}.post_attention_norm.weight", shape.n_embd)
        weights.constant(f"{block}.post_ffw_norm.weight", shape.n_embd)
    # gemma2 ties its embeddings: were they not small beside what the layers add, every token would predict itself.
    # In the logits the output norm makes up for that.
    weights.per_token("token_embd.weight", gain=TIED_STD * shape.n_embd**0.5)
    weights.constant("output_norm.weight", shape.n_embd, value=LOGIT_STD / (TIED_STD * shape.n_embd**0.5))
    metadata = attention_metadata(shape) | {"attention.sliding_window": window}
    return write_model(path, "gemma2", weights, metadata, quantization=quantization)


def write_tiny_recurrent(path: Path, **options: Any) -> Path:
    """Write a mamba: no attention, but a state of fixed size for each sequence."""
    shape = TinyShape(**options)
    weights = Weights(shape)
    for block in weights.blocks():
        weights.mamba(block)
    weights.untied_ends()
    return write_model(path, "mamba", weights, mamba_metadata(shape))


def write_tiny_hybrid(path: Path, **options: Any) -> Path:
    """Write a jamba: layers 0, 2, … are mamba's, the others attention without positions."""
    shape = TinyShape(**options)
    if shape.n_layer < 2:
        raise ValueError("a hybrid has layers of both kinds, so two at least")
    weights = Weights(shape)
    heads_kv = [shape.n_head_kv * (i % 2) for i in range(shape.n_layer)]
    for block, n_head_kv in zip(weights.blocks(), heads_kv, strict=True):
        if n_head_kv:
            weights.attention(block)
        else:
            weights.mamba(block)
            weights.constant(f"{block}.ssm_dt_norm.weight", DT_RANK)
            weights.constant(f"{block}.ssm_b_norm.weight", STATE_SIZE)
            weights.constant(f"{block}.ssm_c_norm.weight", STATE_SIZE)
        weights.feed_forward(block)
    weights.untied_ends()
    metadata = attention_metadata(shape) | mamba_metadata(shape) | {"attention.head_count_kv": heads_kv}
    return write_model(path, "jamba", weights, metadata)


def attention_metadata(shape: TinyShape) -> Metadata:
    return {
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "rope.dimension_count": shape.n_embd // shape.n_head,
    }


def mamba_metadata(shape: TinyShape) -> Metadata:
    return {
        "ssm.conv_kernel": CONV_KERNEL,
        "ssm.inner_size": 2 * shape.n_embd,
        "ssm.state_size": STATE_SIZE,
        "ssm.time_step_rank": DT_RANK,
        "ssm.dt_b_c_rms": True,
    }


def tokenizer_metadata(shape: TinyShape) -> Metadata:
    vocabulary = shape.vocabulary
    n_normal = len(vocabulary.tokens) - len(SPECIAL_TOKENS)
    ids = {role: vocabulary.id_of(token) for token, roles in SPECIAL_TOKENS.items() for role in roles}
    if shape.eos_id is not None:
        ids["eos"] = shape.eos_id
    metadata: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(vocabulary.tokens),
        "tokenizer.ggml.token_type": [TokenType.NORMAL] * n_normal + [TokenType.CONTROL] * len(SPECIAL_TOKENS),
        "tokenizer.ggml.merges": list(vocabulary.merges),
        "tokenizer.ggml.add_bos_token": False,
    }
    if shape.chat_template is not None:
        metadata["tokenizer.chat_template"] = shape.chat_template
    return metadata | {f"tokenizer.ggml.{role}_token_id": token for role, token in ids.items()}


def quantized(name: str, values: NDArray[np.float32], kind: GGMLQuantizationType) -> NDArray[Any]:
    """The values in another type. Of a K-quant they are others, with the same deviation."""
    if kind not in SCALES:
        return quantize(values, kind)
    return random_blocks(values.shape, kind, zlib.crc32(name.encode()), float(values.std()))


def random_blocks(shape: tuple[int, ...], kind: GGMLQuantizationType, seed: int, std: float) -> NDArray[Any]:
    """Matrices of `shape` with weights of about `std`, as bytes; a row is a multiple of a block."""
    block, n_bytes = GGML_QUANT_SIZES[kind]
    *others, columns = shape
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, size=(math.prod(shape) // block, n_bytes), dtype=np.uint8)
    for place, scale in SCALES[kind].items():
        drawn = (rng.standard_normal(len(blocks)) * scale * std).astype("<f2")
        blocks[:, place : place + 2] = drawn.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*others, columns // block * n_bytes)


def add_keys(writer: GGUFWriter, keys: Metadata) -> None:
    for key, value in keys.items():
        kind = GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(
    path: Path,
    arch: str,
    weights: Weights,
    metadata: Metadata,
    tokenizer: Metadata | None = None,
    *,
    quantization: GGMLQuantizationType | None = None,
) -> Path:
    """Write a GGUF file: keys of `metadata` get the architecture as their prefix, those of `tokenizer` are complete."""
    shape = weights.shape
    common: Metadata = {
        "context_length": shape.n_ctx_train,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    keys = {"general.name": f"tiny {arch}", "general.file_type": int(LlamaFileType.ALL_F32)}
    keys |= {f"{arch}.{key}": value for key, value in (common | metadata).items()}
    writer = GGUFWriter(path, arch)
    add_keys(writer, keys | (tokenizer_metadata(shape) if tokenizer is None else tokenizer))
    for name, values in weights.items():
        if quantization is None or values.ndim < 2:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantized(name, values, quantization), raw_dtype=quantization)
    finish(writer)
    return path
