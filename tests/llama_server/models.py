"""Stand-ins for the models of llama.cpp's server tests, which are downloaded there and not available here.

Random weights say random words. But the tokenizer is of the same kind as their model's, SentencePiece with a token that
begins every text, so that all can pass that does not depend on what the model was taught.
"""

import random
from pathlib import Path

from gguf import TokenType

from pyllmcancel.models import packaged_model_path
from tests.support.gguf_bytes import GgufBytes
from tests.support.media_files import png
from tests.support.tiny_embedders import encoder_shape, load_wordpieces, write_tiny_encoder
from tests.support.tiny_models import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    VOCABULARIES,
    Metadata,
    TinyShape,
    Vocabulary,
    attention_metadata,
    llama_weights,
    load_vocabulary,
    write_model,
)
from tests.support.tiny_rankers import write_cross_encoder
from tests.support.toy_projectors import write_pair

RANKER = "jina-reranker-v1-tiny-en/ggml-model-f16.gguf"
N_RANKER_TOKENS = 38_000  # so that the tests' texts have as many tokens as with their ranker's vocabulary
RANKERS_SEED = 4  # the first whose random weights rank the tests' documents as their ranker does
ALL_WORDPIECES = 29_528  # of BERT's vocabulary, with the special ones and without the reserved ones
N_TOKENS = 2048
N_SPECIAL = 3  # <unk>, <s>, </s>: the first ones
N_CTX_TRAIN = 8192
N_PIXELS = 32  # of the side of a picture


def write_stand_ins(folder: Path) -> dict[str, list[str]]:
    """Options that name the files, by the name of the repository that the tests ask for; or of a file in it, which
    counts first.
    """
    stories = write_sentence_piece_llama(folder / "stories.gguf")
    models = {
        "ggml-org/test-model-stories260K": stories,
        "ggml-org/test-model-stories260K-infill": packaged_model_path(),
        "ggml-org/models": write_tiny_encoder(
            folder / "encoder.gguf", n_ctx_train=512, n_embd=32, vocabulary=load_wordpieces(ALL_WORDPIECES)
        ),
        f"ggml-org/models/{RANKER}": write_ranker(folder / "ranker.gguf"),
    }
    found = {name: ["--model", str(path)] for name, path in models.items()}
    found["cache"] = ["--models-preset", str(write_cache(folder / "cache.ini", stories))]
    text, projector = write_pair(folder, "gemma3")
    found["ggml-org/tinygemma3-GGUF:Q8_0"] = ["--model", str(text), "--mmproj", str(projector)]
    return found


def write_pictures(folder: Path) -> None:
    """Write pictures in the place of those that the tests would download, by their names there."""
    for seed, name in enumerate(("11_truck.png", "91_cat.png")):
        noise = random.Random(seed)
        rows = (b"\0" + noise.randbytes(3 * N_PIXELS) for _ in range(N_PIXELS))
        (folder / name).write_bytes(png(N_PIXELS, N_PIXELS, pixels=b"".join(rows)))


def write_cache(path: Path, stories: Path) -> Path:
    """Write the preset of the models that the router's tests expect to have been downloaded."""
    models = {
        "ggml-org/tinygemma3-GGUF:Q8_0": (stories, 1024),
        "ggml-org/test-model-stories260K:F32": (stories, 2048),
        "ggml-org/test-model-stories260K-infill:F32": (packaged_model_path(), 1024),
    }
    sections = (f"[{name}]\nmodel = {file}\nctx-size = {n_ctx}\n" for name, (file, n_ctx) in models.items())
    path.write_text("".join(sections))
    return path


def write_ranker(path: Path, seed: int = RANKERS_SEED) -> Path:
    """Write a cross-encoder with the beginning of GPT-2's vocabulary, and special tokens as those of Jina's rankers."""
    gpt = load_vocabulary(N_RANKER_TOKENS)
    tokens = (*gpt.tokens[: -len(SPECIAL_TOKENS)], "<s>", "</s>")
    shape = encoder_shape(seed=seed, vocabulary=Vocabulary(tokens, gpt.merges), n_ctx_train=512, n_embd=32)
    kinds = [TokenType.NORMAL] * (len(tokens) - 2) + [TokenType.CONTROL] * 2
    end = shape.vocabulary.id_of("</s>")
    tokenizer: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "jina-v1-en",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(gpt.merges),
        "tokenizer.ggml.bos_token_id": end - 1,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.seperator_token_id": end,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.token_type_count": 2,
    }
    return write_cross_encoder(path, shape, tokenizer)


def write_sentence_piece_llama(path: Path) -> Path:
    """Write a llama with the beginning of Llama 2's vocabulary: special tokens, bytes, and the first pieces."""
    file = GgufBytes.read(VOCABULARIES / "ggml-vocab-llama-spm.gguf")
    first = slice(N_TOKENS)
    tokens: list[str] = file.listed("tokenizer.ggml.tokens", first)
    shape = TinyShape(vocabulary=Vocabulary(tuple(tokens), ()), n_ctx_train=N_CTX_TRAIN, chat_template=CHAT_TEMPLATE)
    weights = llama_weights(shape)
    # An answer ends when the test says so.
    weights["output.weight"][:N_SPECIAL] = 0.0
    tokenizer: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": file.listed("tokenizer.ggml.scores", first),
        "tokenizer.ggml.token_type": file.listed("tokenizer.ggml.token_type", first),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return write_model(path, "llama", weights, attention_metadata(shape), tokenizer)
