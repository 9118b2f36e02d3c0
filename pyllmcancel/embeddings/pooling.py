"""The values that an embedder takes and gives: what crosses the boundary to the compiled module, and what leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import ContextError
from pyllmcancel.request import Delta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel._native import Model
    from pyllmcancel.step import StepStatus

POOLINGS = ("auto", "none", "mean", "cls", "last")


class Pooling(IntEnum):
    """How the vectors of a text's tokens become one; the numbers are llama.cpp's (``llama_pooling_type``)."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


def pooling_of(model: Model, wanted: str, *, required: bool = False) -> Pooling:
    """How `model` pools, if `wanted`, one of `POOLINGS`, does not say otherwise; NONE for one that generates.

    Raises
    ------
    ContextError
        It ranks texts; or it would generate, though pooling is `required`.
    """
    pooling = _own_pooling(model) if wanted == "auto" else Pooling[wanted.upper()]
    if required and pooling is Pooling.NONE:
        raise ContextError("this model does not pool; embeddings of it need to be told how (--pooling)")
    return pooling


def _own_pooling(model: Model) -> Pooling:
    architecture = model.metadata.get("general.architecture", "")
    pooling = Pooling(int(model.metadata.get(f"{architecture}.pooling_type", Pooling.NONE)))
    if pooling is Pooling.RANK:
        raise ContextError("this model ranks texts, which is not supported")
    return pooling


class EmbedRow(NamedTuple):
    """What one text got out of a step that returned OK.

    `embedding`, shape (n_embd,), float32, read-only and of length 1 (L2), is there when the text's last token is
    computed, unless its request had been cancelled by then, or `faulty` says that the numbers are no embedding: not
    finite, or all zero.
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Embedded(Delta):
    """One text of a request is done; `index` is its place among the request's texts."""

    embedding: NDArray[np.float32]
