"""The sizes of pictures, read from their headers, so that none is decoded that would take too much memory or time.

The formats are those that the core's decoder takes. A header is not trusted where a decoder would follow it: the pixels
of a PNG are inflated here, as many as its header names, and the scans of a JPEG are counted.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.pausing import Pause

PNG = b"\x89PNG\r\n\x1a\n"
# Channels of a pixel, by the colour type.
PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
INFLATED_PIECE = 1 << 20  # bytes between two pauses
# A progressive JPEG has ten scans or so. A decoder goes over all pixels for each one, even if it is empty.
MAX_SCANS = 64
MAX_SEGMENTS = 1_000  # of a JPEG, before its frame: tags, thumbnails and tables
FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # of a JPEG: baseline, extended, progressive
OTHER_FRAMES = frozenset({0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)})
BMP_DEPTHS = (1, 4, 8, 16, 24, 32)
# The first bytes of other formats, after white space.
OTHERS = {
    "SVG": (b"<svg", b"<?xml", b"<!doctype svg"),
    "HTML": (b"<html", b"<!doctype html"),
    "PDF": (b"%pdf",),
    "TIFF": (b"ii*\0", b"mm\0*"),
}


class Size(NamedTuple):
    """The size of a picture in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width:,} x {self.height:,}"


def check_picture(data: bytes, max_pixels: int, pause: Pause) -> Size:
    """Return the size of a picture that may be decoded. `pause` is called now and then, and ends the check by raising.

    BadMedia: the format is not supported, the file is cut or contradicts its header, or there are too many pixels.
    """
    size, check = picture_size(data, max_pixels)
    pause()
    if check == "png":
        _check_png(data, size, pause)
    elif check == "jpeg" and data.count(b"\xff\xda") > MAX_SCANS:
        raise BadMedia(f"it has more than {MAX_SCANS} scans")
    return size


def picture_size(data: bytes, max_pixels: int) -> tuple[Size, str]:
    """Return the size that a picture's header says, and the format; BadMedia as `check_picture`."""
    try:
        size, form = _read(data)
    except (struct.error, IndexError):
        raise BadMedia("its header is cut short") from None
    if size.width < 1 or size.height < 1:
        raise BadMedia(f"it has {size} pixels")
    if size.width * size.height > max_pixels:
        raise BadMedia(f"it has {size} pixels, but at most {max_pixels:,} are accepted", too_large=True)
    return size, form


def _read(data: bytes) -> tuple[Size, str]:
    if data.startswith(PNG):
        return _png_size(data), "png"
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(data), "jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return _gif_size(data), "gif"
    if data.startswith(b"BM") and len(data) > 26:
        return _bmp_size(data), "bmp"
    raise BadMedia(f"{_format_of(data)} is not supported; PNG, JPEG, GIF and BMP are")


def _format_of(data: bytes) -> str:
    if not data:
        return "an empty file"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        return "AVIF" if data[8:12] in (b"avif", b"avis") else "HEIC" if data[8:11] in (b"hei", b"mif") else "MPEG-4"
    beginning = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for name, marks in OTHERS.items():
        if beginning.startswith(marks):
            return name
    return "this format"


def _png_size(data: bytes) -> Size:
    length, kind, width, height, depth, colour, _, _, interlaced = struct.unpack_from(">I4sIIBBBBB", data, 8)
    if (length, kind) != (13, b"IHDR"):
        raise BadMedia("the PNG does not begin with its header")
    if depth not in PNG_DEPTHS.get(colour, ()) or interlaced > 1:
        raise BadMedia("the PNG's header has values that do not exist")
    return Size(width, height)


def _check_png(data: bytes, size: Size, pause: Pause) -> None:
    """Refuse pixels that inflate to more than the header says: a decoder would make room for all of them."""
    bits = PNG_CHANNELS[data[25]] * data[24]
    needed = room = (1 + (size.width * bits + 7) // 8) * size.height
    if data[28]:  # seven smaller pictures, whose rows begin with a byte each, and may end with unused bits
        needed, room = size.width * size.height * bits // 8, room + 16 * (size.width + size.height)
    inflater = zlib.decompressobj()
    n_inflated = 0
    try:
        for piece in _png_pixels(data, pause):
            rest = piece
            while rest and not inflater.eof:
                n_inflated += len(inflater.decompress(rest, INFLATED_PIECE))
                if n_inflated > room:
                    raise BadMedia("the PNG has more pixels than its header says")
                rest = inflater.unconsumed_tail
                pause()
    except zlib.error:
        raise BadMedia("the PNG's pixels are damaged") from None
    if n_inflated < needed:
        raise BadMedia("the PNG is cut short")


def _png_pixels(data: bytes, pause: Pause) -> Iterator[bytes]:
    at = len(PNG)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            return
        if at + 12 + length > len(data):
            break
        if kind == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        at += 12 + length
        pause()
    raise BadMedia("the PNG is cut short")


def _jpeg_size(data: bytes) -> Size:
    """Return the size that the frame's header has, which stands before the first scan."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        at = data.find(b"\xff", at)
        if at < 0:
            break
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker in FRAMES:
            _, _, height, width = struct.unpack_from(">HBHH", data, at)
            return Size(width, height)
        if marker in OTHER_FRAMES:
            raise BadMedia("this kind of JPEG is not supported; baseline and progressive are")
        if marker in (0xD9, 0xDA):
            break
        if marker != 0x01 and marker not in range(0xD0, 0xD9):
            (length,) = struct.unpack_from(">H", data, at)
            at += max(length, 2)
    raise BadMedia("the JPEG has no header of its frame")


def _gif_size(data: bytes) -> Size:
    # The decoder takes the first frame only, on a canvas of this size.
    if len(data) < 14:
        raise BadMedia("the GIF is cut short")
    return Size(*struct.unpack_from("<HH", data, 6))


def _bmp_size(data: bytes) -> Size:
    (header,) = struct.unpack_from("<I", data, 14)
    if header == 12:
        width, height, _, depth = struct.unpack_from("<HHHH", data, 18)
    elif header in (40, 56, 108, 124):
        width, height, _, depth = struct.unpack_from("<iiHH", data, 18)
    else:
        raise BadMedia("this kind of BMP is not supported")
    if depth not in BMP_DEPTHS:
        raise BadMedia("the BMP's header has values that do not exist")
    # Rows from the top down have a negative height.
    size = Size(width, abs(height))
    if len(data) * 8 < size.width * size.height * depth:
        raise BadMedia("the BMP is cut short")
    return size
