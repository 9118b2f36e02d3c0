"""Fixtures of the tests of embeddings: a module, one of its models that pool, and embedders on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.pooling import EmbedRow, Pooling
from pyllmcancel.step import StepStatus
from tests.support import fake_embedder, fake_model
from tests.support.device import STOPPABLE, load_model
from tests.support.threads import N_THREADS
from tests.support.tiny_embedders import write_tiny_decoder, write_tiny_encoder
from tests.support.tiny_rankers import write_tiny_cross_encoder, write_tiny_qwen_ranker


@dataclass(slots=True)
class EmbedWorld:
    """A native module, real or fake, with a model and a way to pool."""

    native: Any
    model: Any
    pooling: Pooling

    def embedder(self, **options: Any) -> Any:
        sizes = {"n_ctx": 512, "n_seq_max": 4, "n_batch": 128, "n_threads": N_THREADS}
        stoppable = STOPPABLE if self.native is _native else {}
        return self.native.Embedder(self.model, **sizes | stoppable | {"pooling": self.pooling} | options)

    def open(self, embedder: Any, seq: int, tokens: Sequence[int]) -> Any:
        """Open `seq`; returns its flag."""
        flag = self.native.CancelFlag()
        embedder.open(seq, list(tokens), flag)
        return flag

    def alone(self, tokens: Sequence[int]) -> np.ndarray:
        """The embedding of `tokens` in an embedder of its own, in one step."""
        embedder = self.embedder()
        self.open(embedder, 0, tokens)
        (row,) = ok(embedder.step([(0, len(tokens))]))
        return np.array(row.embedding)

    def check_same(self, found: np.ndarray, expected: np.ndarray) -> None:
        """Other company, other kernels, other last bits: llama.cpp's attention computes in F16."""
        error = float(np.sum((found - expected) ** 2) / np.sum(expected**2))
        assert error <= (0.0 if self.native is fake_embedder else 1e-5)


def ok(result: Any) -> list[EmbedRow]:
    assert result.status is StepStatus.OK
    return result.rows


REAL = (
    *("encoder mean", "encoder cls", "encoder none", "decoder last", "decoder mean", "recurrent last", "hybrid last"),
    *("ranker rank", "decoding-ranker rank"),
)
FAKE = ("none mean", "none none", "attention last", "recurrent last", "attention rank")


@pytest.fixture(scope="session")
def embedder_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("embedders")
    return {
        "encoder": write_tiny_encoder(folder / "tiny-encoder.gguf"),
        "decoder": write_tiny_decoder(folder / "tiny-decoder.gguf"),
        "ranker": write_tiny_cross_encoder(folder / "tiny-ranker.gguf"),
        "decoding-ranker": write_tiny_qwen_ranker(folder / "tiny-decoding-ranker.gguf"),
        "headless": write_tiny_cross_encoder(folder / "tiny-headless.gguf", has_last_layer=False),
    }


@pytest.fixture(scope="session")
def make_embed_world(embedder_files: dict[str, Path], model_files: dict[str, Path]) -> Callable[[str], EmbedWorld]:
    """Make a world from its name, as ``real encoder mean``; a model is loaded once."""
    models: dict[str, Any] = {}

    def make(name: str) -> EmbedWorld:
        module, kind, pooling = name.split()
        if module == "fake":
            model = fake_model.Model(kind)
            model.n_scores = 2
            return EmbedWorld(fake_embedder, model, Pooling[pooling.upper()])
        if kind not in models:
            models[kind] = load_model((embedder_files | model_files)[kind])
        return EmbedWorld(_native, models[kind], Pooling[pooling.upper()])

    return make


@pytest.fixture(params=[*(f"real {name}" for name in REAL), *(f"fake {name}" for name in FAKE)])
def world(request: pytest.FixtureRequest, make_embed_world: Callable[[str], EmbedWorld]) -> EmbedWorld:
    """Every kind of model that pools, of the compiled module and of the fake."""
    return make_embed_world(request.param)


@pytest.fixture(params=[f"real {name}" for name in REAL])
def real_world(request: pytest.FixtureRequest, make_embed_world: Callable[[str], EmbedWorld]) -> EmbedWorld:
    return make_embed_world(request.param)
