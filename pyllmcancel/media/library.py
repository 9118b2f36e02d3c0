"""The maker of prompts with pictures and sounds. Any thread may use it; it decodes files, which takes a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyllmcancel.errors import ContextLengthError, InvalidRequestError, MediaError, UsageError
from pyllmcancel.media.cache import MediaCache, MediaKey, Parts, chunks_of
from pyllmcancel.media.checks import DEFAULT_LIMITS, MediaLimits, check
from pyllmcancel.media.sounds import least_seconds, silence
from pyllmcancel.media.values import Media, MediaKind, MediaPrompt, MediaRun, MediaRuns, Modality, new_marker
from pyllmcancel.pausing import FlaggedPause, Pause, no_pause

if TYPE_CHECKING:
    from pyllmcancel._native import CancelFlag, MediaChunk, MediaEncoder, Model
    from pyllmcancel.media.room import Held, MediaRoom

# A file whose decoding takes longer is refused. An honest one takes a second or two.
DECODE_SECONDS = {MediaKind.IMAGE: 10.0, MediaKind.AUDIO: 60.0}
HALF_MINUTE = 30  # seconds
ROUNDED = 2  # tokens, of what two sounds add for their last windows
NEEDS = {MediaKind.IMAGE: Modality.VISION, MediaKind.AUDIO: Modality.AUDIO}


class MediaLibrary:
    """The pictures and sounds of a model with a projector.

    `new_flag` makes a flag for a decoding that cannot be given up, `image_size` reads the size in a file's header,
    `cache_bytes` limits what is kept of pictures, and `n_batch` the rows of a step. The `marker` stands for a picture
    in a text; it is random, so that no client can know it. `modalities` are what the model can be given.
    """

    def __init__(
        self,
        encoder: MediaEncoder,
        model: Model,
        *,
        new_flag: Callable[[], CancelFlag],
        image_size: Callable[[bytes], tuple[int, int] | None],
        cache_bytes: int,
        n_batch: int,
    ) -> None:
        self.marker = new_marker()
        found = [(Modality.VISION, encoder.has_vision), (Modality.AUDIO, encoder.has_audio)]
        self.modalities = frozenset(modality for modality, has in found if has)
        self._encoder = encoder
        self._model = model
        self._new_flag = new_flag
        self._image_size = image_size
        self._cache = MediaCache(cache_bytes)
        self._n_batch = n_batch
        self._half_minute = self._tokens_of_half_minute()

    def prepare(
        self,
        text: str,
        media: Sequence[Media],
        *,
        owner: str = "",
        add_special: bool = True,
        n_ctx: int | None = None,
        keeps: bool = True,
        limits: MediaLimits = DEFAULT_LIMITS,
        room: MediaRoom | None = None,
        pause: FlaggedPause = no_pause,
    ) -> MediaPrompt:
        """Return the tokens of a text in which each `marker` stands for the next of the owner's `media`.

        A prompt that does not fit into `n_ctx` is refused before its next picture is decoded. Unless it `keeps` its
        pictures, it is only counted. It takes `room` for as long as it lives. `pause` is called between pictures, and
        ends the work by raising; its flag ends the decoding of a file.

        MediaError if one of them is broken, too large, or of a kind that the model does not take; InvalidRequestError
        if there is no marker for each, ContextLengthError if the prompt has `n_ctx` tokens or more, and QueueFullError
        if there is no room at present.
        """
        texts = text.split(self.marker)
        if len(texts) != len(media) + 1:
            message = f"the prompt has places for {len(texts) - 1} pictures and sounds, and there are {len(media)}"
            raise InvalidRequestError(message)
        bos = self._model.special_tokens.get("bos")
        tokens = [bos] if add_special and self._model.adds_bos and bos is not None else []
        runs: list[MediaRun] = []
        counts = [] if n_ctx is None else self._least_tokens(media, limits, pause)
        rest = sum(counts)
        held: dict[MediaChunk, Held] = {}
        for number, piece in enumerate(texts):
            tokens += self._model.tokenize(piece, add_special=False, parse_special=True) if piece else []
            if number < len(media):
                pause()
                if n_ctx is not None:
                    check_room(len(tokens) + rest, n_ctx, at_least=True)
                    rest -= counts[number]
                parts = self._parts(media[number], number, owner, limits, pause)
                if keeps and room is not None:
                    hold(room, owner, parts, number, held)
                for part in parts:
                    if keeps and not isinstance(part, list):
                        runs.append(MediaRun(len(tokens), part))
                    tokens += part if isinstance(part, list) else part.tokens
                pause()
        if n_ctx is not None:
            check_room(len(tokens), n_ctx)
        found = MediaRuns(runs)
        found.held, found.digests = list(held.values()), [one.digest for one in media]
        return MediaPrompt(tokens, found)

    def check_fit(self, media: Sequence[Media], limits: MediaLimits, n_ctx: int, pause: Pause) -> None:
        """Raise the error of `prepare` if pictures and sounds do not fit, by their headers: nothing is decoded."""
        check_room(sum(self._least_tokens(media, limits, pause)), n_ctx, at_least=True)

    def _least_tokens(self, media: Sequence[Media], limits: MediaLimits, pause: Pause) -> list[int]:
        """Return the tokens that each will have at least: all of a picture's, and few less than all of a sound's."""
        counts = []
        for index, one in enumerate(media):
            pause()
            if one.kind is MediaKind.AUDIO:
                seconds = least_seconds(one.data, limits.seconds) if self._half_minute else 0.0
                counts.append(int(seconds // HALF_MINUTE) * self._half_minute)
                continue
            size = check(one, index, limits, no_pause, whole=False)
            assert size is not None, "a picture has a size"
            try:
                counts.append(self._encoder.n_image_tokens(*size))
            except UsageError as error:
                raise MediaError(f"the image cannot be used: {error}", index) from error
        return counts

    def _tokens_of_half_minute(self) -> int:
        """Return a lower limit of the tokens that another half minute adds to a sound.

        It is measured, because only the projector knows. The tokens of all known ones grow evenly with a sound, but for
        the rounding in their windows.
        """
        if Modality.AUDIO not in self.modalities:
            return 0
        counts = []
        for seconds in (HALF_MINUTE, 2 * HALF_MINUTE):
            media = Media.of(MediaKind.AUDIO, silence(seconds))
            try:
                parts = self._decoded(media, self._new_flag())
                counts.append(sum(len(part) if isinstance(part, list) else part.n_tokens for part in parts))
            except (UsageError, MemoryError):
                return 0  # no sound can be used, and each will be refused in words
        return max(0, counts[1] - counts[0] - ROUNDED)

    def _parts(self, media: Media, index: int, owner: str, limits: MediaLimits, pause: FlaggedPause) -> Parts:
        if NEEDS[media.kind] not in self.modalities:
            raise MediaError(f"this model does not take a prompt with {media.kind} parts", index)
        key = MediaKey(owner, media.kind, media.digest)
        known = self._cache.find(key)
        if known is not None:
            return known
        size = check(media, index, limits, pause)
        # The decoder reads the header for itself: a size that differs was not checked.
        if size is not None and self._image_size(media.data) != size:
            raise MediaError("the image is broken: it can be read in two ways", index)
        first = self._cache.first_token(key)
        try:
            parts = self._decoded(media, pause.flag or self._new_flag(), first)
        except (UsageError, MemoryError) as error:
            pause()  # the file is not at fault if the work was given up
            raise MediaError(f"the {media.kind} cannot be used: {error}", index) from error
        for part in parts:
            if not isinstance(part, list) and part.non_causal and part.n_tokens > self._n_batch:
                message = f"the {media.kind} has {part.n_tokens:,} tokens, which this model computes in one step"
                limit = f"a step has at most {self._n_batch:,} (--ubatch-size)"
                raise MediaError(f"{message}; {limit}", index, too_large=True)
        return self._cache.put(key, tuple(parts))

    def _decoded(self, media: Media, flag: CancelFlag, first: int | None = None) -> list[list[int] | MediaChunk]:
        is_audio, seconds = media.kind is MediaKind.AUDIO, DECODE_SECONDS[media.kind]
        return self._encoder.parts(media.data, audio=is_audio, flag=flag, seconds=seconds, first=first)


def check_room(n_tokens: int, n_ctx: int, *, at_least: bool = False) -> None:
    if n_tokens >= n_ctx:
        raise ContextLengthError(n_tokens, n_ctx, at_least=at_least)


def hold(room: MediaRoom, owner: str, parts: Parts, index: int, held: dict[MediaChunk, Held]) -> None:
    """Add the parts of a prompt's next picture to what is `held`; MediaError or QueueFullError if there is no room."""
    for chunk in chunks_of(parts):
        if chunk in held:
            continue
        total = chunk.n_bytes + sum(one.n_bytes for one in held)
        if total > room.most():
            limit = f"at most {room.most() >> 20:,} are accepted"
            message = f"the request's prepared pictures and sounds take {total >> 20:,} MiB with it; {limit}"
            raise MediaError(message, index, too_large=True)
        held[chunk] = room.hold(owner, chunk)
