"""The pictures and sounds of a request, on their way from its body to the engine.

What has to be fetched is fetched first, in the event loop. Then a worker reads the sources, and the headers of the
files. After that a worker decodes the files, and puts them into the prompt. The request can be cancelled at any time in
between.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyllmcancel.errors import ContextLengthError, InvalidRequestError, MediaError
from pyllmcancel.media.checks import MediaLimits, check
from pyllmcancel.media.errors import BadMedia
from pyllmcancel.media.library import NEEDS
from pyllmcancel.media.sounds import is_sound
from pyllmcancel.media.values import Media, MediaKind
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.media import sources
from pyllmcancel.server.media.parts import WORDS

if TYPE_CHECKING:
    from pyllmcancel.media.values import MediaPrompt
    from pyllmcancel.pausing import FlaggedPause, Pause
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.http.body_limit import Hold
    from pyllmcancel.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Given:
    """One picture or sound of a request."""

    marker: str  # stands for it in the prompt; no client can know it beforehand
    source: str | bytes  # the source, or the bytes that were fetched or uploaded
    kind: MediaKind | None  # None: its bytes say which it is

    @property
    def url(self) -> str | None:
        """The URL that has to be fetched, if there is one."""
        return self.source if isinstance(self.source, str) and sources.is_url(self.source) else None

    @property
    def word(self) -> str:
        return "picture or sound" if self.kind is None else WORDS[self.kind]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The pictures and sounds of a request, and the field that they are in. `files` are their contents, once read."""

    given: Sequence[Given]
    param: str
    owner: str
    files: Sequence[Media] = ()

    def __bool__(self) -> bool:
        return bool(self.given)

    def name(self, place: int) -> str:
        """Return a name for errors: the paths of fields differ from dialect to dialect."""
        return f"{self.given[place].word} {place + 1}"

    def error(self, place: int, error: BadMedia | MediaError) -> ApiError:
        message = f"{self.name(place)}: {error}"
        if error.too_large:
            return ApiError(413, message, param=self.param, code="media_too_large")
        return ApiError(400, message, param=self.param, code="invalid_media")


def given_in(body: ChatBody) -> list[Given]:
    """Return the pictures and sounds of all messages, in their order."""
    return [Given(part.marker, part.source, part.kind) for message in body.messages for part in message.media]


async def gathered(incoming: Incoming[Any], given: Sequence[Given], param: str, *, must_fit: bool = True) -> Gathered:
    """Return a request's pictures and sounds, which have been fetched and read. The request is listed meanwhile.

    Unless the request `must_fit`, its pictures may have more tokens than the context. Errors: there are too many, the
    model does not take them, or one cannot be fetched, or is too large; the request was cancelled, or the server ends.
    """
    state, exchange = incoming.state, incoming.exchange
    asked = Gathered(given, param, exchange.owner)
    if not asked:
        return asked
    check_asked(state, asked)
    if any(one.url for one in given):
        asked = replace(asked, given=await incoming.fetch(partial(_fetched, state, asked, exchange.hold)))
    files = await incoming.prepare(partial(read_files, state, asked, must_fit), state.preparers)
    # The longer base64 in the body counts already; a file on this machine does not.
    beyond = (len(file.data) - len(one.source) for file, one in zip(files, asked.given, strict=True))
    exchange.hold.add(sum(max(0, n_bytes) for n_bytes in beyond))
    return replace(asked, files=files)


def read_files(state: ServerState, asked: Gathered, must_fit: bool, pause: Pause) -> list[Media]:
    """Return the files, or raise the error of one, by its header: nothing is decoded. For a worker."""
    assert state.engine.media is not None, "gathered() has checked this"
    found: list[Media] = []
    limits = limits_of(state)
    for place, one in enumerate(asked.given):
        pause()
        try:
            data = sources.read(one.source, state.config.media)
            pause()
            found.append(Media.of(one.kind or (MediaKind.AUDIO if is_sound(data) else MediaKind.IMAGE), data))
            check(found[place], place, limits, pause, whole=False)
        except (BadMedia, MediaError) as error:
            raise asked.error(place, error) from None
    if must_fit:
        with named(asked, range(len(found))):
            state.engine.media.check_fit(found, limits, state.engine.n_ctx, pause)
    return found


@contextmanager
def named(asked: Gathered, places: Sequence[int]) -> Iterator[None]:
    """Have errors of the library name the field, and each picture or sound by its place in the request."""
    try:
        yield
    except MediaError as error:
        raise asked.error(places[error.index], error) from None
    except ContextLengthError as error:
        error.param = asked.param
        raise


def limits_of(state: ServerState) -> MediaLimits:
    return MediaLimits(state.config.media.max_pixels, state.config.media.max_seconds)


def check_asked(state: ServerState, asked: Gathered) -> None:
    """Raise an error for what this model, or this server, does not take."""
    settings, media = state.config.media, state.engine.media
    for place, one in enumerate(asked.given):
        if media is None:
            message = f"this model takes no {one.word}s: it was loaded without a projector (--mmproj)"
            raise InvalidRequestError(message, asked.param)
        if one.kind is not None and NEEDS[one.kind] not in media.modalities:
            raise InvalidRequestError(f"this model's projector takes no {one.word}s", asked.param)
        if one.url and not settings.urls:
            message = f"{asked.name(place)}: no URL is fetched, since this server was started without --media-url"
            raise InvalidRequestError(f"{message}; send a data URL", asked.param)
    if len(asked.given) > settings.max_items:
        message = f"a request may have at most {settings.max_items} pictures and sounds, not {len(asked.given):,}"
        raise ApiError(413, message, param=asked.param, code="media_too_large")


async def _fetched(state: ServerState, asked: Gathered, hold: Hold) -> list[Given]:
    seconds, found = state.config.media.fetch_timeout, list[Given]()
    try:
        # One after the other, so that a request has one connection at a time.
        async with asyncio.timeout(seconds):
            for one in asked.given:
                content = one.url and await state.fetcher.fetch(one.url, hold.add)
                found.append(replace(one, source=content) if content else one)
    except TimeoutError:
        raise asked.error(len(found), BadMedia(f"it could not be fetched within {seconds:g} s")) from None
    except BadMedia as error:
        raise asked.error(len(found), error) from None
    return found


def media_tokens(
    state: ServerState, prompt: str, asked: Gathered, pause: FlaggedPause, *, must_fit: bool = True
) -> MediaPrompt:
    """Return the tokens of a prompt that has the marker of each picture and sound. For a worker.

    Without `must_fit` they are only to be counted, and the prompt has no pictures. InvalidRequestError or ApiError: a
    file is cut or over a limit, or the prompt has its marker not exactly once.
    """
    media = state.engine.media
    assert media is not None, "gathered() has checked this"
    marks = {one.marker: place for place, one in enumerate(asked.given)}
    text, places = in_order(prompt, marks, media.marker, asked.param)
    # A template, or the client itself, may have written the token that begins texts.
    begins = prompt.startswith(state.texts.bos) if state.texts.bos else False
    with named(asked, places):
        return media.prepare(
            text,
            [asked.files[place] for place in places],
            owner=asked.owner,
            add_special=not begins,
            n_ctx=state.engine.n_ctx if must_fit else None,
            keeps=must_fit,
            limits=limits_of(state),
            room=state.media_room,
            pause=pause,
        )


def in_order(prompt: str, places: Mapping[str, int], marker: str, param: str) -> tuple[str, list[int]]:
    """Return the prompt with the engine's own marker in each place, and what stands there, in the order of the prompt.

    InvalidRequestError: the template omits or repeats one, or a text has the engine's marker, which no client can know.
    """
    if marker in prompt:
        raise InvalidRequestError("a text has the mark that stands for pictures", param)
    pattern = re.compile("|".join(map(re.escape, places)))
    marks = pattern.findall(prompt)
    if sorted(marks) != sorted(places):
        raise InvalidRequestError("the chat template omits a picture or sound, or repeats one", param)
    return pattern.sub(lambda _: marker, prompt), [places[mark] for mark in marks]
