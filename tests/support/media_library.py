"""Stands in for what makes prompts of pictures: it remembers what it is given, and writes a word for each picture.

Test modules take the fixtures of a server with it from here: `world` and `library`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyllmcancel.errors import ContextLengthError
from pyllmcancel.media.checks import MediaLimits, check
from pyllmcancel.media.room import MediaRoom
from pyllmcancel.media.values import Media, Modality
from pyllmcancel.pausing import FlaggedPause, Pause
from tests.support.http_world import World, open_world


class RecordingLibrary:
    """As `pyllmcancel.media.library.MediaLibrary`, as far as the server uses it."""

    marker = "<the engine's own mark>"

    def __init__(self, model: Any, *modalities: Modality) -> None:
        self.modalities = frozenset(modalities or Modality)
        self.given: list[tuple[str, list[Media]]] = []  # the text and the media of each call
        self.owners: list[str] = []
        # Called in the worker's thread with the call's `pause`.
        self.on_prepare: Callable[[FlaggedPause], object] = lambda _: None
        self.n_least: int | None = None  # of tokens, if the headers of pictures say so
        self._model = model

    def check_fit(self, _media: Sequence[Media], _limits: MediaLimits, n_ctx: int, _pause: Pause) -> None:
        if self.n_least is not None:
            raise ContextLengthError(self.n_least, n_ctx, at_least=True)

    def prepare(
        self,
        text: str,
        media: Sequence[Media],
        *,
        owner: str,
        add_special: bool,
        n_ctx: int | None,
        keeps: bool,
        limits: MediaLimits,
        room: MediaRoom,
        pause: FlaggedPause,
    ) -> list[int]:
        assert keeps is (n_ctx is not None)
        for index, one in enumerate(media):
            check(one, index, limits, pause)
        self.given.append((text, list(media)))
        self.owners.append(owner)
        self.on_prepare(pause)
        shown = text.replace(self.marker, "[seen]")
        return self._model.tokenize(shown, add_special=add_special, parse_special=True)

    @property
    def prompt(self) -> str:
        """The text of the only call, with a word for each picture and sound."""
        ((text, media),) = self.given
        for one in media:
            text = text.replace(self.marker, f"[{one.kind} of {len(one.data)}]", 1)
        return text


@asynccontextmanager
async def seeing(*modalities: Modality, **options: Any) -> AsyncIterator[tuple[World, RecordingLibrary]]:
    """A server whose model takes pictures and sounds."""
    async with open_world(n_ctx=4096, **options) as world:
        library = RecordingLibrary(world.model, *modalities)
        object.__setattr__(world.engine, "media", library)  # an engine's facts are frozen
        yield world, library


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with seeing() as (opened, _):
        yield opened


@pytest.fixture
def library(world: World) -> RecordingLibrary:
    assert isinstance(world.engine.media, RecordingLibrary)
    return world.engine.media
