"""The lengths of sounds, read from their files, so that none is decoded that would take too much memory.

The core's decoder makes room for all samples before it decodes the first one: as many as the header of a WAV or FLAC
file says, and as many as an MP3 file has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.pausing import Pause

# Formats of a WAV's samples: integers, floats, A-law, µ-law, and the first two under a longer header.
WAV_FORMATS = frozenset({1, 3, 6, 7, 0xFFFE})
MAX_CHUNKS = 1_000  # before a WAV's samples
# The header that each frame of an MP3 begins with, wherever a decoder looks for one. Bytes in between may look like
# one, too: they make a sound longer by some percent at most.
FRAME = re.compile(rb"(?=\xff([\xe2-\xe7\xf2-\xff])([\x00-\xef]))", re.DOTALL)
RATES = (44_100, 48_000, 32_000)  # of MPEG 1; half of them of MPEG 2, a quarter of MPEG 2.5
SAMPLES = {1: 1152, 2: 1152, 3: 384}  # of a frame, by the two bits that name its layer
FRAMES_PER_PAUSE = 4_096
# Seconds of an MP3 that a decoder may leave out at both ends: a tag says how many samples, in two fields of 12 bits.
TRIMMED = 1.25
LAYER_3 = 1  # the two bits that name it
# Thousands of bits a second of a frame of layer III, by its four bits: of MPEG 1, and of the others. Any with 0.
MPEG_1_RATES = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
OTHER_RATES = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


def check_sound(data: bytes, max_seconds: float, pause: Pause) -> float:
    """Return the seconds of a sound that may be decoded, or an upper limit. `pause` ends the check by raising.

    BadMedia: the format is not supported, the file is cut or contradicts its header, or the sound is too long.
    """
    try:
        length = _length(data, lambda: _most_of_mp3(data, max_seconds, pause))
    except (struct.error, IndexError):
        raise BadMedia("its header is cut short") from None
    if length > max_seconds:
        raise BadMedia(f"it is longer than {max_seconds:g} s", too_large=True)
    if length <= 0:
        raise BadMedia("it has no samples")
    return length


def least_seconds(data: bytes, max_seconds: float) -> float:
    """Return a lower limit of a sound's length, up to `max_seconds`, by its headers; 0 for a broken file."""
    try:
        return _length(data, lambda: _least_of_mp3(data, max_seconds))
    except (BadMedia, struct.error, IndexError):
        return 0.0


def silence(seconds: int) -> bytes:
    """Return a WAV file: 8 bits, 8 kHz."""
    n = seconds * 8_000
    head = struct.pack("<4sI8sIHHIIHH", b"RIFF", 36 + n, b"WAVEfmt ", 16, 1, 1, 8_000, 8_000, 1, 8)
    return head + struct.pack("<4sI", b"data", n) + b"\x80" * n


def _length(data: bytes, mp3_length: Callable[[], float]) -> float:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _wav_length(data)
    # A decoder looks behind tags.
    behind = _behind_tags(data)
    if data[behind : behind + 4] == b"fLaC":
        return _flac_length(data, behind + 4)
    begins = behind > 0 or (data[:1] == b"\xff" and data[1] >= 0xE0)
    if begins and data[behind : behind + 4] != b"OggS":
        return mp3_length()
    raise BadMedia("this format is not supported; WAV, MP3 and FLAC are")


def is_sound(data: bytes) -> bool:
    """Return whether a file begins as a sound does; a picture never does."""
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    return is_wav or data.startswith((b"fLaC", b"ID3")) or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")


def _behind_tags(data: bytes) -> int:
    """Return where the file goes on behind ID3 tags at its beginning."""
    at = 0
    while data[at : at + 3] == b"ID3" and at + 10 <= len(data):
        size = sum((byte & 0x7F) << shift for byte, shift in zip(data[at + 6 : at + 10], (21, 14, 7, 0), strict=True))
        at += 10 + size + (10 if data[at + 5] & 0x10 else 0)
    return at


def _wav_length(data: bytes) -> float:
    at, frame, rate = 12, 0, 0
    for _ in range(MAX_CHUNKS):
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"fmt ":
            form, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", data, at)
            if form not in WAV_FORMATS or frame != channels * ((bits + 7) // 8):
                raise BadMedia("this kind of WAV is not supported; uncompressed samples are")
        elif kind == b"data":
            if not (frame and rate):
                raise BadMedia("the WAV does not say how its samples are stored")
            if size > len(data) - at:
                raise BadMedia("the WAV has fewer samples than its header says")
            return float(size / frame / rate)
        at += size + size % 2
    raise BadMedia("the WAV has no samples")


def _flac_length(data: bytes, at: int) -> float:
    kind, _, _, packed = struct.unpack_from(">B3s10sQ", data, at)
    if kind & 0x7F:
        raise BadMedia("the FLAC does not begin with its header")
    # 20 bits of the rate, 3 of the channels, 5 of the samples' size, 36 of their number.
    rate, n_samples = packed >> 44, packed & ((1 << 36) - 1)
    if not (rate and n_samples):
        raise BadMedia("the FLAC does not say how long it is")
    return float(n_samples / rate)


def _most_of_mp3(data: bytes, max_seconds: float, pause: Pause) -> float:
    length = 0.0
    for n, found in enumerate(FRAME.finditer(data)):
        if n % FRAMES_PER_PAUSE == 0:
            pause()
        rate, samples = _rate_and_samples(found)
        if rate and samples:
            length += samples / rate
        if length > max_seconds:
            break
    return length


def _least_of_mp3(data: bytes, max_seconds: float) -> float:
    """Return the length of the frames of layer III that follow each other from the first one on."""
    at, length = _behind_tags(data), 0.0
    while length < max_seconds and (found := FRAME.match(data, at)):
        rate, samples = _rate_and_samples(found)
        first, second = found[1][0], found[2][0]
        kbits = (MPEG_1_RATES if first >> 3 & 3 == 3 else OTHER_RATES)[second >> 4]
        if not (rate and kbits) or first >> 1 & 3 != LAYER_3:
            break
        at += samples * kbits * 125 // rate + (second >> 1 & 1)
        if at > len(data):
            break
        length += samples / rate
    return max(0.0, length - TRIMMED)


def _rate_and_samples(found: re.Match[bytes]) -> tuple[int, int]:
    """Return the samples a second, and those of the frame; one is 0 if this is no frame."""
    first, second = found[1][0], found[2][0]
    number, layer = second >> 2 & 3, first >> 1 & 3
    slower = {3: 1, 2: 2, 0: 4}.get(first >> 3 & 3, 4)
    samples = 576 if layer == LAYER_3 and slower > 1 else SAMPLES.get(layer, 0)
    return (RATES[number] // slower if number < 3 else 0), samples
