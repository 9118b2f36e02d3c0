"""Small pictures and sounds, made of nothing, and ones that lie about themselves."""

import base64
import random
import struct
import zlib

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(
    width: int = 8,
    height: int = 8,
    *,
    colour: tuple[int, int, int] = (200, 30, 30),
    pixels: bytes | None = None,
    form: tuple[int, int] = (8, 2),
    interlaced: int = 0,
) -> bytes:
    """Return a picture of one colour; `pixels`, which are not compressed yet, may be others than the header says."""
    if pixels is None:
        pixels = (b"\0" + bytes(colour) * width) * height
    header = struct.pack(">IIBBBBB", width, height, *form, 0, 0, interlaced)
    return PNG_MAGIC + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def bmp(width: int = 4, height: int = 4, *, depth: int = 24, header: int = 40) -> bytes:
    row = (width * depth + 31) // 32 * 4
    content = bytes(row * abs(height))
    head = struct.pack("<2sIHHI", b"BM", 54 + len(content), 0, 0, 54)
    return head + struct.pack("<IiiHHIIiiII", header, width, height, 1, depth, 0, len(content), 0, 0, 0, 0) + content


def gif(width: int = 1, height: int = 1) -> bytes:
    """Return a picture of one pixel, on a canvas of this size."""
    canvas = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes((255, 0, 0, 0, 0, 255))
    return canvas + b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00\x3b"


def jpeg_head(width: int = 16, height: int = 16, *, marker: int = 0xC0, scans: int = 1) -> bytes:
    """Return a JPEG as far as it is measured: the frame's header, and scans without pixels."""
    tag = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0\1\1\0\0\1\0\1\0\0"
    frame = bytes((0xFF, marker)) + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    scan = b"\xff\xda" + struct.pack(">H", 8) + b"\1\1\0\0\x3f\0" + b"\0"
    return b"\xff\xd8" + tag + frame + scan * scans + b"\xff\xd9"


def wav(seconds: float = 0.1, *, rate: int = 16_000, claimed: int | None = None, form: int = 1) -> bytes:
    """Return silence; `claimed` bytes of samples, if the header is to lie."""
    samples = bytes(2 * int(seconds * rate))
    n_bytes = len(samples) if claimed is None else claimed
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVE"
    about = b"fmt " + struct.pack("<IHHIIHH", 16, form, 1, rate, 2 * rate, 2, 16)
    return head + about + b"data" + struct.pack("<I", n_bytes) + samples


def noise_wav(seconds: float, *, seed: int, rate: int = 16_000, held: int = 40) -> bytes:
    """Return noise that no other seed has; each of its values is held for this number of samples."""
    values = random.Random(seed).choices(range(-8_000, 8_001), k=int(seconds * rate) // held)
    samples = b"".join(struct.pack("<h", value) * held for value in values)
    return wav(0, rate=rate, claimed=len(samples)) + samples


def flac_head(n_samples: int, rate: int = 16_000, *, kind: int = 0x80) -> bytes:
    packed = rate << 44 | 15 << 36 | n_samples
    return b"fLaC" + struct.pack(">B3s10sQ", kind, b"\0\0\x22", bytes(10), packed) + bytes(16)


def mp3(n_frames: int) -> bytes:
    """Return frames of MPEG 1, layer III, 32 kbit/s at 32 kHz: 36 ms each."""
    return (b"\xff\xfb\x18\xc4" + bytes(140)) * n_frames


def data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
