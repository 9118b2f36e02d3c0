"""Score an exported model: bits per byte of text that it has not seen.

`python -m tools.demo_model.evaluate pyllmcancel/models/stdlib-coder.gguf`
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from . import corpus
from .corpus import SourceFile
from .model import Llama, rope_tables
from .packaged import read
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
    """Return the total code length of files in bits, divided by their size in UTF-8 bytes.

    Every byte of every file counts, the first ones too: a file's first token is predicted from an end-of-text token,
    every later one from at least `window / 2` tokens if the file has that many. The end of the file is not scored.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--window", type=int, default=1024, help="tokens of context")
    options = parser.parse_args()
    model, words = read(options.model)
    torch.set_num_threads(2)
    _, held_out = corpus.split(corpus.collect())
    score = bits_per_byte(model, words, held_out, options.window)
    sys.stdout.write(f"{len(held_out)} held-out files, {score:.4f} bits per byte\n")


if __name__ == "__main__":
    main()
