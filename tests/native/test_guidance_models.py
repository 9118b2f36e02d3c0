"""Constraints over real vocabularies, whose tokenizers have their own ideas of how a text begins."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.constraints.guidance import Guidance, Vocabulary, json_rule
from pyllmcancel.engine.engine import Engine
from tests.llama_server.models import write_sentence_piece_llama
from tests.support.threads import N_THREADS
from tests.support.tiny_models import write_tiny_llama

WRITERS = {"sentencepiece": write_sentence_piece_llama, "bpe": write_tiny_llama}


@pytest.fixture(scope="module", params=WRITERS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    file: Path = WRITERS[request.param](tmp_path_factory.mktemp("model") / "model.gguf")
    with Engine.load(EngineConfig(model=file, threads=N_THREADS, ctx_size=256)) as engine:
        yield engine


@pytest.mark.parametrize("text", ['"', '"42"', " a", "\n", "é", "", "{\n  "])
def test_the_tokens_of_a_text_spell_it_and_nothing_before_it(engine: Engine, text: str) -> None:
    vocabulary = Vocabulary(engine.model)
    assert b"".join(vocabulary.tokens[token] for token in vocabulary(text)) == text.encode()


def test_what_a_schema_forces_can_be_generated(engine: Engine) -> None:
    guide = Guidance(engine.model).compile(f"start: {json_rule({'const': '42'})}", "x")
    with engine.generate("x", max_tokens=16, constraint=guide) as stream:
        assert json.loads("".join(delta.text for delta in stream)) == "42"
