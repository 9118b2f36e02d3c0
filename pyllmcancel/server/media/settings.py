"""The settings of pictures and sounds. Cheap to import: the command line reads the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyllmcancel.media.checks import DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """Where pictures and sounds may come from, besides the body itself, and the limits of one request's.

    Attributes
    ----------
    urls
        True if pictures are fetched from public addresses.
    path
        The folder below which ``file://`` addresses are; None: no files are read.
    max_items
        The limit of pictures and sounds in a request.
    max_bytes
        The size limit of one of them, as a file.
    max_pixels
        The limit of a picture's width times height.
    max_seconds
        The limit of a sound's length.
    max_prepared
        The size limit of what is prepared of pictures and sounds of live requests, of all of them together.
    fetch_timeout
        The time limit in seconds for everything that a request has fetched.
    """

    urls: bool = False
    path: Path | None = None
    max_items: int = 100
    max_bytes: int = 10 << 20
    max_pixels: int = DEFAULT_LIMITS.pixels
    max_seconds: float = DEFAULT_LIMITS.seconds
    max_prepared: int = 2 << 30
    fetch_timeout: float = 10.0
