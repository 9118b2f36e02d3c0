"""Screenshots for the documents, as small files."""

import io
from pathlib import Path

from PIL import Image

COLOURS = 128  # a page of text and lines has few


def write_small(screenshot: bytes, path: Path) -> None:
    """Write a screenshot with a palette, which makes it a third as large."""
    with Image.open(io.BytesIO(screenshot)) as image:
        reduced = image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)
