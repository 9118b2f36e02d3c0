"""The check of a picture or a sound before it is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import MediaError
from pyllmcancel.media.errors import BadMedia
from pyllmcancel.media.pictures import check_picture, picture_size
from pyllmcancel.media.sounds import check_sound
from pyllmcancel.media.values import MediaKind

if TYPE_CHECKING:
    from pyllmcancel.media.pictures import Size
    from pyllmcancel.media.values import Media
    from pyllmcancel.pausing import Pause


class MediaLimits(NamedTuple):
    """The limits of a picture's width times height (3 bytes a pixel; 8K has 33 million), and of a sound's length."""

    pixels: int = 1 << 25
    seconds: float = 600.0


DEFAULT_LIMITS = MediaLimits()


def check(media: Media, index: int, limits: MediaLimits, pause: Pause, *, whole: bool = True) -> Size | None:
    """Return the size of a picture that may be decoded; None for a sound, MediaError for what may not.

    Unless `whole`, only the header of a picture is read, which is done at once.
    """
    try:
        if media.kind is MediaKind.IMAGE:
            if not whole:
                return picture_size(media.data, limits.pixels)[0]
            return check_picture(media.data, limits.pixels, pause)
        check_sound(media.data, limits.seconds, pause)
        return None
    except BadMedia as error:
        raise MediaError(str(error), index, too_large=error.too_large) from None
