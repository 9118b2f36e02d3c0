"""The kinds of pooling, the checks that a model has the wanted one, and the results of an embedder."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.step import StepStatus

DOES_NOT_GENERATE = "this model makes embeddings and does not generate text"
DOES_NOT_POOL = "this model does not pool, so it makes no embeddings"
EMBEDS_TOKENS = "this model embeds tokens (--pooling none), and makes no embeddings of texts"
EMBEDS_TEXTS = "this model embeds texts, not tokens: that is --pooling none"
POOLINGS = ("auto", "none", "mean", "cls", "last", "rank")


class Pooling(IntEnum):
    """The pooling of a text's token vectors; the numbers are llama.cpp's (``llama_pooling_type``).

    MEAN, CLS and LAST make one vector of them, NONE leaves them as they are, and RANK makes scores of them.
    """

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


def check_embeds(pooling: Pooling | None, *, tokens: bool = False) -> None:
    """Raise InvalidRequestError unless a model of this pooling makes embeddings of texts or, if `tokens`, of their
    tokens.
    """
    if pooling is None:
        raise InvalidRequestError(DOES_NOT_POOL, "model")
    if pooling is Pooling.RANK:
        raise InvalidRequestError("this model ranks documents and makes no embeddings", "model")
    if (pooling is Pooling.NONE) is not tokens:
        raise InvalidRequestError(EMBEDS_TEXTS if tokens else EMBEDS_TOKENS, "model")


def check_ranks(pooling: Pooling | None) -> None:
    """Raise InvalidRequestError unless a model of this pooling ranks documents."""
    if pooling is not Pooling.RANK:
        raise InvalidRequestError("this model does not rank documents", "model")


class EmbedRow(NamedTuple):
    """The result of one text from a step that returned OK.

    `embedding` is float32 and read-only: one vector of length 1 (L2), shape (n_embd,); with `Pooling.NONE` the vectors
    of all tokens as they are, shape (n_tokens, n_embd); with `Pooling.RANK` the text's scores, shape (n_embd,). It is
    set after the text's last token is computed, unless the request had been cancelled by then. It is not set either if
    the result is `faulty`: not finite or, of embeddings, all zero.
    """

    seq: int
    n_tokens: int
    embedding: NDArray[np.float32] | None = None
    faulty: bool = False


class EmbedResult(NamedTuple):
    """The outcome of a step; as `pyllmcancel.step.StepResult`."""

    status: StepStatus
    rows: list[EmbedRow]
    spared: bool
    polls: int
    decode_us: int
    n_threads: int = 1
