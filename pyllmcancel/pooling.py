"""The inputs and results of an embedder: the values that cross the boundary to the compiled module."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.step import StepStatus

POOLINGS = ("auto", "none", "mean", "cls", "last")


class Pooling(IntEnum):
    """The pooling of a text's token vectors into one; the numbers are llama.cpp's (``llama_pooling_type``)."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


class EmbedRow(NamedTuple):
    """The result of one text from a step that returned OK.

    `embedding`, shape (n_embd,), float32, read-only and of length 1 (L2), is set after the text's last token is
    computed, unless the request had been cancelled by then. It is not set either if the result is `faulty`: not finite,
    or all zero.
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
