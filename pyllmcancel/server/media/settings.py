"""The settings of pictures and sounds. Cheap to import: the command line reads the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyllmcancel.media.checks import DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """Where pictures and sounds may come from, besides the body itself, and the limits of one request's."""

    urls: bool = False  # True if pictures are fetched from public addresses
    path: Path | None = None  # the folder below which ``file://`` addresses are; None: no files are read
    max_items: int = 100  # the limit of pictures and sounds in a request
    max_bytes: int = 10 << 20  # the size limit of one of them, as a file
    max_pixels: int = DEFAULT_LIMITS.pixels  # the limit of a picture's width times height
    max_seconds: float = DEFAULT_LIMITS.seconds  # the limit of a sound's length
    max_prepared: int = 2 << 30  # the size limit of what is prepared for all live requests together
    fetch_timeout: float = 10.0  # seconds for everything that a request has fetched
