"""Which draft models have the vocabulary of the model that they draft for."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pyllmcancel.engine.vocabularies import FIRST_COMPARED, MAX_SIZE_DIFFERENCE, vocabulary_difference

N_TOKENS = 1000


@dataclass
class Vocabulary:
    """As much of a model as is compared."""

    texts: list[bytes] = field(default_factory=lambda: [b"token %d" % i for i in range(N_TOKENS)])
    metadata: dict[str, str] = field(default_factory=lambda: {"tokenizer.ggml.model": "gpt2"})
    special_tokens: dict[str, int] = field(default_factory=lambda: {"bos": 1, "eos": 2})
    adds_bos: bool = True

    @property
    def n_vocab(self) -> int:
        return len(self.texts)

    def pieces(self, *, special: bool = False) -> list[bytes]:
        assert special
        return self.texts


def difference(draft: Vocabulary) -> str | None:
    return vocabulary_difference(cast("Any", Vocabulary()), cast("Any", draft))


def renamed(token: int) -> Vocabulary:
    found = Vocabulary()
    found.texts[token] = b"another \xff"
    return found


def longer(by: int) -> Vocabulary:
    found = Vocabulary()
    found.texts = [*found.texts, *[b"unused"] * by] if by > 0 else found.texts[:by]
    return found


@pytest.mark.parametrize(
    "draft",
    [
        Vocabulary(),
        longer(MAX_SIZE_DIFFERENCE),
        longer(-MAX_SIZE_DIFFERENCE),
        renamed(FIRST_COMPARED - 1),
        Vocabulary(special_tokens={"bos": 1, "eos": 3}),  # which no text gets by itself
    ],
    ids=["the same", "longer", "shorter", "unused token", "another end"],
)
def test_small_differences_do_not_matter(draft: Vocabulary) -> None:
    assert difference(draft) is None


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        (longer(MAX_SIZE_DIFFERENCE + 1), "its vocabulary has 1,129 tokens, and the model's has 1,000"),
        (longer(-MAX_SIZE_DIFFERENCE - 1), "its vocabulary has 871 tokens, and the model's has 1,000"),
        (renamed(FIRST_COMPARED), r"its token 5 is 'another \\xff', and the model's is 'token 5'"),
        (renamed(N_TOKENS - 1), r"its token 999 is 'another \\xff', and the model's is 'token 999'"),
        (Vocabulary(metadata={"tokenizer.ggml.model": "llama"}), "its tokenizer is llama, and the model's is gpt2"),
        (
            Vocabulary(special_tokens={"bos": 7, "eos": 2}),
            "its bos token is 7, added to texts, and the model's is 1, added to texts",
        ),
        (Vocabulary(adds_bos=False), "its bos token is 1, not added to texts, and the model's is 1, added to texts"),
        (
            Vocabulary(metadata={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.add_eos_token": "true"}),
            "its eos token is 2, added to texts, and the model's is 2, not added to texts",
        ),
    ],
    ids=["too long", "too short", "token", "last token", "kind", "begin", "no begin", "an end"],
)
def test_others_are_said(draft: Vocabulary, told: str) -> None:
    assert difference(draft) == told
