"""A picture or a sound of a request, and a prompt that has some.

In a prompt a picture is a run of negative token ids, one for each row of its embedding. The ids are given to the
picture's content, once for each owner. So two prompts with equal tokens have equal pictures, and whatever compares
tokens, such as the prefix cache, compares pictures, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyllmcancel._native import MediaChunk


def new_marker() -> str:
    """Return a text that stands for one picture or sound in a prompt, and that no client can know beforehand."""
    return f"<__media_{secrets.token_hex(16)}__>"


class Modality(StrEnum):
    """A sense of a model with a projector."""

    VISION = "vision"
    AUDIO = "audio"


class MediaKind(StrEnum):
    """The kind of a part that is not text."""

    IMAGE = "image"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or a sound as a client has sent it."""

    kind: MediaKind  # the expected kind; the bytes are looked at, too
    data: bytes  # the content of the file
    digest: bytes  # SHA-256 of the content

    @classmethod
    def of(cls, kind: MediaKind, data: bytes) -> Media:
        """Return a value with its digest, which takes a millisecond for a megabyte."""
        return cls(kind, data, sha256(data).digest())


class MediaRun(NamedTuple):
    """A run of a prompt's tokens: `chunk` begins at token `start`."""

    start: int
    chunk: MediaChunk

    @property
    def end(self) -> int:
        return self.start + self.chunk.n_tokens


class MediaRuns(tuple[MediaRun, ...]):
    """The runs of a prompt, the `digests` of its media in order, and objects that are `held` as long as the runs."""

    held: Sequence[object] = ()
    digests: Sequence[bytes] = ()


class MediaPrompt(list[int]):
    """The tokens of a prompt, and its pictures and sounds: `Engine.submit` takes it as it takes any token ids.

    A copy that is a plain list has no pictures, and is refused.
    """

    def __init__(self, tokens: Iterable[int], runs: Sequence[MediaRun] = ()) -> None:
        super().__init__(tokens)
        self.runs = runs if isinstance(runs, MediaRuns) else MediaRuns(runs)


def media_runs(prompt: Sequence[int]) -> tuple[MediaRun, ...]:
    """Return the pictures and sounds of a prompt, in their order."""
    return prompt.runs if isinstance(prompt, MediaPrompt) else ()


def text_tokens(tokens: Iterable[int]) -> list[int]:
    """Return the tokens that stand for text."""
    return [token for token in tokens if token >= 0]
