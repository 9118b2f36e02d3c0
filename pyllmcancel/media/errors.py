"""The error of everything that makes a picture or a sound unusable."""

from __future__ import annotations


class BadMedia(Exception):  # noqa: N818 - reads as what it is
    """A picture or a sound cannot be used; the message says why. `too_large`: it exceeds a limit."""

    def __init__(self, message: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large
