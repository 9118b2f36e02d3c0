"""The texts that are refused by their length, and the tokenizing of texts that hardly fit."""

from types import SimpleNamespace
from typing import Any

import pytest

from pyllmcancel.errors import ContextLengthError
from pyllmcancel.models import packaged_model_path
from pyllmcancel.pausing import no_pause
from pyllmcancel.server.http.workers import Abandoned
from pyllmcancel.server.limits import PIECE
from pyllmcancel.server.wire.tokens import TextReader
from tests.support import fake_native

N_CTX = 100


class SparseModel(fake_native.Model):
    """1,024 blanks are one token, any other character is one; says what it was asked to tokenize."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def longest_piece(self) -> int:
        return PIECE

    def tokenize(self, text: str | bytes, **_options: Any) -> list[int]:
        self.asked.append(len(text))
        assert isinstance(text, str)
        return list(text.replace(" " * 1_024, "_").encode())


def reader_of(model: fake_native.Model, n_ctx: int = N_CTX, draft_sources: tuple[str, ...] = ()) -> TextReader:
    return TextReader(SimpleNamespace(model=model, n_ctx=n_ctx, draft_sources=draft_sources))


def test_a_text_that_hardly_fits_is_counted_in_pieces_until_it_does_not() -> None:
    model = SparseModel()
    with pytest.raises(ContextLengthError, match="at least") as refused:
        reader_of(model).tokens("x" * (4 * PIECE), "prompt", no_pause)
    assert model.asked == [PIECE], "the rest was not looked at"
    assert N_CTX < refused.value.n_prompt_tokens <= 4 * PIECE
    assert refused.value.param == "prompt"


def test_a_text_of_few_tokens_is_read_however_long_it_is() -> None:
    model = SparseModel()
    text = " " * (70 * 1_024)
    assert len(text) > PIECE
    assert len(reader_of(model).tokens(text, "prompt", no_pause)) == 70


def test_what_is_only_wanted_need_not_fit() -> None:
    model = SparseModel()
    assert len(reader_of(model).tokens("x" * (2 * PIECE), "content", no_pause, must_fit=False)) == 2 * PIECE


def test_between_two_pieces_the_rest_can_be_given_up() -> None:
    model = SparseModel()
    turns = iter([None, None])

    def pause() -> None:
        if next(turns, Abandoned) is Abandoned:
            raise Abandoned

    with pytest.raises(Abandoned):
        reader_of(model, n_ctx=PIECE).tokens(" " * (20 * PIECE), "prompt", pause)
    assert model.asked == [PIECE, PIECE]


def test_where_lengths_say_nothing_nothing_is_refused_by_length() -> None:
    model = fake_native.Model()
    model.longest_piece = lambda: 0  # type: ignore[method-assign]
    reader_of(model).check_length(10**9, "prompt")


@pytest.mark.parametrize("letters", ["x", " ", "\n", "é", "def f():\n    return 1\n", "漢字", "<|endoftext|>"])
def test_no_text_that_fits_is_refused(letters: str) -> None:
    """With the vocabulary of the packaged model: whatever has no more tokens than the context is read."""
    from pyllmcancel._native import Model

    model = Model.load(packaged_model_path())
    text = letters * 2_000
    tokens = model.tokenize(text, parse_special=True)
    assert list(reader_of(model, n_ctx=len(tokens)).tokens(text, "prompt", no_pause, parse_special=True)) == tokens


@pytest.mark.parametrize(("sources", "n_read"), [(("ngram", "prediction"), 1000), (("ngram",), 1), ((), 1)])
def test_a_prediction_is_read_where_something_is_drafted_from_it(sources: tuple[str, ...], n_read: int) -> None:
    reader = reader_of(fake_native.Model(), n_ctx=2048, draft_sources=sources)
    assert reader.predicted("x" * 1000, no_pause) == tuple(n_read * b"x")
    assert reader.predicted("", no_pause) == ()
