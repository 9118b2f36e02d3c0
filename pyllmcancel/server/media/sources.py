"""The sources of pictures and sounds: base64, alone or in a ``data:`` URL, files below a folder, and URLs."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from pathlib import Path
from urllib.parse import unquote

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.server.config import MediaSettings

DATA_KINDS = ("data:image/", "data:audio/")
OF_URLS = str.maketrans("-_", "+/")
SHOWN = 60  # characters of a source in an error


def is_url(source: str) -> bool:
    """Return whether the source has to be fetched."""
    return source[:8].lower().startswith(("http://", "https://"))


def read(source: str | bytes, settings: MediaSettings) -> bytes:
    """Return the bytes of a source that is not fetched; BadMedia if it may not be read. For a worker."""
    if isinstance(source, bytes):
        return checked(source, settings.max_bytes)
    if source[:7].lower() == "file://":
        return _file(unquote(source[7:]), settings)
    if source[:5].lower() == "data:":
        return _data(source, settings.max_bytes)
    return decoded(source, settings.max_bytes)


def decoded(text: str, max_bytes: int) -> bytes:
    """Return the bytes that base64 stands for; BadMedia if it is broken, or for too many."""
    text = "".join(text.split())  # MIME breaks base64 into lines
    if len(text) * 3 // 4 > max_bytes + 3:
        raise BadMedia(f"it has more than {max_bytes:,} bytes", too_large=True)
    try:
        # Some clients leave the padding out, and some write the letters that URLs may have.
        letters = text.rstrip("=").translate(OF_URLS)
        found = base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        shown = text[:SHOWN] + "…" * (len(text) > SHOWN)
        raise BadMedia(f"neither a URL nor valid base64: {shown!r}") from None
    return checked(found, max_bytes)


def checked(found: bytes, max_bytes: int) -> bytes:
    if len(found) > max_bytes:
        raise BadMedia(f"it has more than {max_bytes:,} bytes", too_large=True)
    if not found:
        raise BadMedia("it is empty")
    return found


def _data(url: str, max_bytes: int) -> bytes:
    head, comma, content = url.partition(",")
    if not comma or not head.lower().startswith(DATA_KINDS):
        raise BadMedia(f"a data URL must begin with data:image/ or data:audio/, not {head[:SHOWN]!r}")
    if not head.lower().endswith(";base64"):
        raise BadMedia("a data URL must be base64")
    return decoded(unquote(content) if "%" in content else content, max_bytes)


def _file(name: str, settings: MediaSettings) -> bytes:
    if settings.path is None:
        raise BadMedia("files are not read: this server was started without --media-path")
    root = settings.path.resolve()
    try:
        path = Path(os.path.realpath(root / name.lstrip("/")))
        if not path.is_relative_to(root):
            raise FileNotFoundError
        # A pipe would block the opening.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError
            if found.st_size > settings.max_bytes:
                raise BadMedia(f"it has more than {settings.max_bytes:,} bytes", too_large=True)
            return file.read(settings.max_bytes)
    except BadMedia:
        raise
    except (OSError, ValueError):
        raise BadMedia(f"there is no file {name[:SHOWN]!r} below --media-path") from None
