"""Projectors with random weights, of several kinds, for tiny text models: what they see is noise, but always the same.

Each kind has another shape of prompt: idefics3 (SmolVLM) cuts pictures into tiles between texts, gemma3 has rows that
look at each other, qwen2.5vl has rows that share positions (M-RoPE) and pictures of any size. qwen3a hears: each
second of a sound is 13 rows.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tests.support import media_files, tiny_models
from tests.support.tiny_models import TinyShape, Vocabulary, Weights

N_EMBD, N_HEAD, N_FF, N_LAYER = 64, 4, 128, 2
# Of the encoder of sounds: its bands of frequencies, the channels of its convolutions, and the rows of a second.
N_MEL, CHANNELS, ROWS = 16, 4, 13
PATCH, SIDE, MERGE = 8, 64, 2
TEXT_EMBD = 64


@dataclass(frozen=True, slots=True)
class Eyes:
    """The sizes of a projector that sees."""

    n_embd: int = N_EMBD
    n_head: int = N_HEAD
    n_ff: int = N_FF
    n_layer: int = N_LAYER
    patch: int = PATCH  # pixels of a patch's side
    side: int = SIDE  # and of a tile's
    merge: int = MERGE  # a row is made of `merge` x `merge` patches
    text_embd: int = TEXT_EMBD  # numbers of a row: the text model's embedding
    half: bool = False  # the matrices are F16, as in most published projectors


TOY = Eyes()

Tensors = dict[str, NDArray[Any]]
MARKS = (
    *("<fake_token_around_image>", "<global-img>", "<start_of_image>", "<end_of_image>"),
    *("<|vision_start|>", "<|vision_end|>", "<|audio_start|>", "<|audio_end|>"),
)


def vocabulary() -> Vocabulary:
    """The tiny models' vocabulary, whose last tokens before the special ones are what projectors put into texts."""
    plain = tiny_models.load_vocabulary()
    tokens = list(plain.tokens)
    at = len(tokens) - len(tiny_models.SPECIAL_TOKENS) - len(MARKS)
    tokens[at : at + len(MARKS)] = MARKS
    return Vocabulary(tuple(tokens), plain.merges[: at - 256])


def text_tokenizer(shape: TinyShape) -> dict[str, Any]:
    """The metadata of the tokenizer, which knows those tokens as control tokens."""
    keys = tiny_models.tokenizer_metadata(shape)
    kinds = list(keys["tokenizer.ggml.token_type"])
    for mark in MARKS:
        kinds[shape.vocabulary.id_of(mark)] = 3
    keys["tokenizer.ggml.token_type"] = kinds
    return keys


def noise_png(width: int, height: int, *, seed: int) -> bytes:
    """Return a picture of coloured squares that no other seed has."""
    squares = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    pixels = squares.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    return media_files.png(width, height, pixels=b"".join(b"\x00" + line.tobytes() for line in pixels))


def normal(name: str, *size: int, gain: float = 1.0) -> NDArray[np.float32]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.standard_normal(size, dtype=np.float32) * np.float32(gain / size[-1] ** 0.5)


def transformer(side: str, eyes: Eyes = TOY, *, gated: bool) -> Tensors:
    """The layers of a transformer that sees (`v`) or hears (`a`); Qwen's have a gate, and no bias in their norms."""
    tensors: Tensors = {}
    for layer in range(eyes.n_layer):
        block = f"{side}.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors[f"{block}.{part}.weight"] = normal(f"{block}.{part}", eyes.n_embd, eyes.n_embd, gain=1.5)
            tensors[f"{block}.{part}.bias"] = normal(f"{block}.{part}.bias", eyes.n_embd)
        for norm in ("ln1", "ln2"):
            tensors[f"{block}.{norm}.weight"] = np.ones(eyes.n_embd, np.float32)
            if not gated:
                tensors[f"{block}.{norm}.bias"] = np.zeros(eyes.n_embd, np.float32)
        for part, rows, columns in (("ffn_up", eyes.n_ff, eyes.n_embd), ("ffn_down", eyes.n_embd, eyes.n_ff)):
            tensors[f"{block}.{part}.weight"] = normal(f"{block}.{part}", rows, columns)
            tensors[f"{block}.{part}.bias"] = normal(f"{block}.{part}.bias", rows)
        if gated:
            tensors[f"{block}.ffn_gate.weight"] = normal(f"{block}.ffn_gate", eyes.n_ff, eyes.n_embd)
            tensors[f"{block}.ffn_gate.bias"] = normal(f"{block}.ffn_gate.bias", eyes.n_ff)
    tensors[f"{side}.post_ln.weight"] = np.ones(eyes.n_embd, np.float32)
    if not gated:
        tensors[f"{side}.post_ln.bias"] = np.zeros(eyes.n_embd, np.float32)
    return tensors


def vision_tower(eyes: Eyes = TOY, *, gated: bool) -> Tensors:
    return transformer("v", eyes, gated=gated) | {
        "v.patch_embd.weight": normal("patch", eyes.n_embd, 3, eyes.patch, eyes.patch, gain=0.5),
    }


def with_positions(tensors: Tensors, eyes: Eyes = TOY) -> Tensors:
    tensors["v.patch_embd.bias"] = normal("patch.bias", eyes.n_embd)
    n_patches = (eyes.side // eyes.patch) ** 2
    tensors["v.position_embd.weight"] = normal("positions", n_patches, eyes.n_embd, gain=eyes.n_embd**0.5)
    return tensors


def write_projector(path: Path, kind: str, tensors: Tensors, keys: dict[str, Any], eyes: Eyes = TOY) -> Path:
    grey = [0.5, 0.5, 0.5]
    seen = {"image_size": eyes.side, "patch_size": eyes.patch, "image_mean": grey, "image_std": grey}
    common = encoder_keys("vision", eyes, 1e-6) | {f"clip.vision.{key}": value for key, value in seen.items()}
    if eyes.half:
        tensors = {name: halved(name, values) for name, values in tensors.items()}
    return write_clip(path, kind, tensors, common | keys)


def encoder_keys(sense: str, eyes: Eyes, epsilon: float) -> dict[str, Any]:
    sizes = {"embedding_length": eyes.n_embd, "feed_forward_length": eyes.n_ff, "block_count": eyes.n_layer}
    attention = {"attention.head_count": eyes.n_head, "attention.layer_norm_epsilon": epsilon}
    keys: dict[str, Any] = sizes | attention | {"projection_dim": eyes.text_embd}
    return {f"clip.has_{sense}_encoder": True} | {f"clip.{sense}.{key}": value for key, value in keys.items()}


def halved(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix in F16; what is no matrix, and positions, as it is."""
    return values.astype(np.float16) if values.ndim == 2 and "position" not in name else values


def write_clip(path: Path, kind: str, tensors: Tensors, keys: dict[str, Any]) -> Path:
    writer = GGUFWriter(path, "clip")
    tiny_models.add_keys(writer, {"clip.projector_type": kind} | keys)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    tiny_models.finish(writer)
    return path


def write_idefics3(path: Path) -> Path:
    tensors = with_positions(vision_tower(gated=False))
    tensors["mm.model.fc.weight"] = normal("fc", TEXT_EMBD, N_EMBD * MERGE**2, gain=TEXT_EMBD**0.5)
    keys = {
        "clip.use_gelu": True,
        "clip.vision.projector.scale_factor": MERGE,
        "clip.vision.preproc_image_size": 2 * SIDE,
    }
    return write_projector(path, "idefics3", tensors, keys)


def write_gemma3(path: Path, eyes: Eyes = TOY) -> Path:
    tensors = with_positions(vision_tower(eyes, gated=False), eyes)
    tensors["mm.input_projection.weight"] = normal("projection", eyes.n_embd, eyes.text_embd, gain=eyes.text_embd**0.5)
    tensors["mm.soft_emb_norm.weight"] = np.ones(eyes.n_embd, np.float32)
    keys = {"clip.use_gelu": True, "clip.vision.projector.scale_factor": eyes.merge}
    return write_projector(path, "gemma3", tensors, keys, eyes)


def write_qwen25vl(path: Path) -> Path:
    tensors = vision_tower(gated=True)
    tensors["v.patch_embd.weight.1"] = normal("patch.1", N_EMBD, 3, PATCH, PATCH, gain=0.5)
    wide = N_EMBD * MERGE**2
    tensors |= {"mm.0.weight": normal("mm.0", wide, wide), "mm.0.bias": normal("mm.0.bias", wide)}
    tensors |= {
        "mm.2.weight": normal("mm.2", TEXT_EMBD, wide, gain=TEXT_EMBD**0.5),
        "mm.2.bias": normal("mm.2.bias", TEXT_EMBD),
    }
    return write_projector(path, "qwen2.5vl_merger", tensors, {"clip.use_silu": True, "clip.vision.n_wa_pattern": 2})


def write_qwen3a(path: Path) -> Path:
    """Three convolutions over the spectrum, each of which halves it, and a transformer."""
    tensors = transformer("a", gated=False) | {"a.position_embd.weight": normal("ear", ROWS, N_EMBD, gain=N_EMBD**0.5)}
    for number, n_inputs in ((1, 1), (2, CHANNELS), (3, CHANNELS)):
        kernel = f"a.conv2d.{number}"
        tensors[f"{kernel}.weight"] = normal(kernel, CHANNELS, n_inputs, 3, 3, gain=(3 / n_inputs) ** 0.5)
        tensors[f"{kernel}.bias"] = normal(f"{kernel}.bias", CHANNELS)
    tensors["a.conv_out.weight"] = normal("a.conv_out", N_EMBD, CHANNELS * N_MEL // 8, gain=4.0)
    for number, rows, columns in ((1, N_FF, N_EMBD), (2, TEXT_EMBD, N_FF)):
        tensors[f"mm.a.mlp.{number}.weight"] = normal(f"mm.a.{number}", rows, columns, gain=number * 2.0)
        tensors[f"mm.a.mlp.{number}.bias"] = normal(f"mm.a.{number}.bias", rows)
    return write_clip(path, "qwen3a", tensors, encoder_keys("audio", TOY, 1e-5) | {"clip.audio.num_mel_bins": N_MEL})


def write_text_llama(path: Path) -> Path:
    shape = TinyShape(n_embd=TEXT_EMBD, vocabulary=vocabulary())
    weights, metadata = tiny_models.llama_weights(shape), tiny_models.attention_metadata(shape)
    return tiny_models.write_model(path, "llama", weights, metadata, text_tokenizer(shape))


def write_text_gemma3(path: Path) -> Path:
    """A text model with sliding windows in which the rows of a picture look at each other."""
    shape = TinyShape(n_embd=TEXT_EMBD, vocabulary=vocabulary(), n_layer=3)
    weights = Weights(shape)
    head = shape.n_embd // shape.n_head
    for block in weights.blocks():
        weights.attention(block)
        weights.feed_forward(block)
        for norm, size in (
            ("attn_q", head),
            ("attn_k", head),
            ("post_attention", shape.n_embd),
            ("post_ffw", shape.n_embd),
        ):
            weights.constant(f"{block}.{norm}_norm.weight", size)
    weights.per_token("token_embd.weight", gain=1.0)  # which gemma multiplies by the root of n_embd
    weights.constant("output_norm.weight", shape.n_embd)
    weights.per_token("output.weight", gain=tiny_models.LOGIT_STD)
    metadata = tiny_models.attention_metadata(shape) | {
        "attention.sliding_window": 64,
        "attention.key_length": head,
        "attention.value_length": head,
    }
    return tiny_models.write_model(path, "gemma3", weights, metadata, text_tokenizer(shape))


def write_text_qwen2vl(path: Path) -> Path:
    """A text model whose positions have several dimensions."""
    shape = TinyShape(n_embd=TEXT_EMBD, vocabulary=vocabulary())
    weights = Weights(shape)
    n_kv = shape.n_embd // shape.n_head * shape.n_head_kv
    for block in weights.blocks():
        weights.attention(block)
        weights.feed_forward(block)
        for part, size in (("attn_q", shape.n_embd), ("attn_k", n_kv), ("attn_v", n_kv)):
            weights.constant(f"{block}.{part}.bias", size, value=0.0)
    weights.untied_ends()
    metadata = tiny_models.attention_metadata(shape) | {"rope.dimension_sections": [2, 3, 3, 0]}
    return tiny_models.write_model(path, "qwen2vl", weights, metadata, text_tokenizer(shape))


# By name: the maker of a text model, and that of its projector, which sees.
PAIRS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path]]] = {
    "idefics3": (write_text_llama, write_idefics3),
    "gemma3": (write_text_gemma3, write_gemma3),
    "qwen25vl": (write_text_qwen2vl, write_qwen25vl),
}


SOUND_PAIRS = {"qwen3a": (write_text_llama, write_qwen3a)}  # likewise, of projectors that hear


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a text model and its projector; return their paths."""
    write_text, write_senses = (PAIRS | SOUND_PAIRS)[name]
    return write_text(folder / f"{name}-text.gguf"), write_senses(folder / f"mmproj-{name}.gguf")
