"""Texts without any blank: llama.cpp looks for words with std::regex, which calls itself for every character of one."""

import threading
from pathlib import Path

import pytest

from pyllmcancel._native import Model
from tests.support import tiny_models

N_LETTERS = 200_000  # some 30,000 were enough to end the process, in a thread of Python's


@pytest.mark.parametrize("letter", ["a", "!", " ", "1", "漢"])
@pytest.mark.parametrize("kind", ["deepseek-coder", "falcon", "gpt-2"])
def test_any_word_is_tokenized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, letter: str) -> None:
    metadata_of = tiny_models.tokenizer_metadata
    changed = {"tokenizer.ggml.pre": kind}
    monkeypatch.setattr(tiny_models, "tokenizer_metadata", lambda shape: metadata_of(shape) | changed)
    model = Model.load(tiny_models.write_tiny_llama(tmp_path / "model.gguf"))
    found: list[int] = []
    text = letter * N_LETTERS
    thread = threading.Thread(target=lambda: found.extend(model.tokenize(text, add_special=False)))
    thread.start()
    thread.join()
    assert b"".join(map(model.piece, found)).decode() == text
