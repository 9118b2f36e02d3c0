"""Bits per byte of text that the model has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from .corpus import SourceFile
from .model import Llama, rope_tables
from .tokenizer import Special


def _windows(ids: list[int], window: int) -> Iterator[tuple[list[int], int]]:
    """Overlapping windows over a file, each with the number of its last tokens that are new."""
    ids = [Special.END_OF_TEXT.id, *ids]
    stride = window // 2
    start, counted = 0, 1
    while counted < len(ids):
        end = min(len(ids), start + window + 1)
        yield ids[start:end], end - counted
        start, counted = start + stride, end


@torch.inference_mode()
def bits_per_byte(model: Llama, tokenizer: Tokenizer, files: list[SourceFile], window: int = 1024) -> float:
    """Score files.

    Every byte of every file counts, the first ones too: a file's first token is predicted from an end-of-text token,
    every later one from at least `window / 2` tokens if the file has that many. The end of the file is not scored.

    Returns
    -------
    float
        Total code length in bits divided by the files' total size in UTF-8 bytes.
    """
    cosines, sines = rope_tables(model.config, window)
    nats, size = 0.0, 0
    for file in files:
        size += len(file.text.encode())
        for ids, new in _windows(tokenizer.encode(file.text, add_special_tokens=False).ids, window):
            row = torch.tensor(ids)
            length = len(ids) - 1
            logits = model(row[None, :-1], cosines[:length], sines[:length])[0]
            nats += functional.cross_entropy(logits[-new:], row[-new:], reduction="sum").item()
    return nats / math.log(2) / size
