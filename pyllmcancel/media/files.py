"""The files of pictures and sounds: what they are, and how large they are, by their first bytes. Nothing is decoded."""

from __future__ import annotations

from pyllmcancel.media.values import MediaKind

IMAGES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG", b"GIF87a": "GIF", b"GIF89a": "GIF", b"BM": "BMP"}
SOUNDS = {b"fLaC": "FLAC", b"ID3": "MP3"}
TAKEN = {MediaKind.IMAGE: "JPEG, PNG, GIF and BMP", MediaKind.AUDIO: "WAV, MP3 and FLAC"}
MP3_LEAST_BYTES_A_SECOND = 1000  # at 8 kbit/s


def file_format(data: bytes) -> tuple[MediaKind, str] | None:
    """Return what a file is, by its first bytes, or None for a format that is not taken."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return MediaKind.AUDIO, "WAV"
    for kind, formats in ((MediaKind.IMAGE, IMAGES), (MediaKind.AUDIO, SOUNDS)):
        for magic, name in formats.items():
            if data.startswith(magic):
                return kind, name
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:  # an MP3 without a tag
        return MediaKind.AUDIO, "MP3"
    return None


def sound_seconds(data: bytes, name: str) -> float | None:
    """Return the length that a sound file's header says, or for an MP3 the longest that it may have; None for a header
    that says nothing, or cannot be true.
    """
    if name == "FLAC":
        # The block STREAMINFO comes first: 20 bits of the sample rate, 3 of channels, 5 of bits, 36 of samples.
        packed = int.from_bytes(data[18:26], "big")
        rate, samples = packed >> 44, packed & ((1 << 36) - 1)
        return samples / rate if len(data) >= 26 and rate and samples else None
    if name == "WAV":
        rate = int.from_bytes(data[28:32], "little") if data[12:16] == b"fmt " else 0  # bytes a second
        return len(data) / rate if rate else None
    return len(data) / MP3_LEAST_BYTES_A_SECOND


def jpeg_passes(data: bytes) -> int:
    """Return an upper bound of the passes that a JPEG's decoder makes over its pixels: the markers that begin one."""
    return data.count(b"\xff\xda")
