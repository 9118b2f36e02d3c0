"""One epoch as a stream of tokens: plain files, fill-in-the-middle, conversations."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from . import conversations
from .corpus import SourceFile
from .tokenizer import NEVER_PREDICTED, Special

FIM_SHARE = 0.15
FUNCTION_SHARE = 0.25
SMALL_TALK_SHARE = 0.15
BLOCK_CHARACTERS = (600, 3000)

Tokens = npt.NDArray[np.uint16]


def _blocks(text: str, draw: random.Random) -> list[str]:
    """Cut a text at line ends into blocks of a random length."""
    blocks, start = [], 0
    while start < len(text):
        end = text.find("\n", start + draw.randint(*BLOCK_CHARACTERS))
        end = len(text) if end < 0 else end + 1
        blocks.append(text[start:end])
        start = end
    return blocks


def _middle(text: str, draw: random.Random) -> tuple[int, int]:
    """Choose what to leave out: the rest of a line, some lines, or any span."""
    start = draw.randrange(len(text))
    match draw.randrange(3):
        case 0:
            end = text.find("\n", start)
        case 1:
            start = text.rfind("\n", 0, start) + 1
            end = start
            for _ in range(draw.randint(1, 8)):
                end = text.find("\n", end) + 1 or len(text)
        case _:
            end = draw.randrange(start, len(text)) + 1
    return start, end if end >= start else len(text)


def infilling(text: str, draw: random.Random) -> str:
    """Order a text as prefix, suffix, middle (Bavarian et al., 2022).

    The cut is made between characters, not tokens, since that is where an editor's cursor stands.
    """
    start, end = _middle(text, draw)
    parts = (
        (Special.FIM_PREFIX, text[:start]),
        (Special.FIM_SUFFIX, text[end:]),
        (Special.FIM_MIDDLE, text[start:end]),
    )
    return "".join(special + part for special, part in parts) + Special.END_OF_TEXT


def _documents(files: list[SourceFile], draw: random.Random) -> list[str]:
    documents = []
    for file in files:
        blocks = _blocks(file.text, draw)
        documents += [infilling(block, draw) if draw.random() < FIM_SHARE else block for block in blocks]
        documents.append(Special.END_OF_TEXT)
        chosen = [function for function in conversations.functions(file.text) if draw.random() < FUNCTION_SHARE]
        documents += [conversations.about_function(function, draw) + Special.END_OF_TEXT for function in chosen]
        if draw.random() < SMALL_TALK_SHARE:
            documents.append(conversations.small_talk(draw) + Special.END_OF_TEXT)
    return documents


def _joined(documents: list[str]) -> list[str]:
    """Join neighbouring blocks of a file, so that tokens may span their seams as they will in use."""
    marked = tuple(special for special in Special)
    joined: list[str] = []
    for document in documents:
        if joined and not document.startswith(marked) and not joined[-1].startswith(marked):
            joined[-1] += document
        else:
            joined.append(document)
    return joined


def epoch(files: list[SourceFile], tokenizer: Tokenizer, seed: int, number: int) -> Tokens:
    """Tokens of one pass through the corpus.

    The same `seed` and `number` always give the same stream, which is what makes training resumable.

    Parameters
    ----------
    files
        Training files.
    tokenizer
        From `tokenizer.train`.
    seed, number
        Of the run and of the epoch.
    """
    draw = random.Random(f"{seed}/{number}")
    files = draw.sample(files, len(files))
    encodings = tokenizer.encode_batch(_joined(_documents(files, draw)))
    return np.concatenate([np.asarray(encoding.ids, dtype=np.uint16) for encoding in encodings])


def rows(tokens: Tokens, length: int, seed: int, number: int) -> Tokens:
    """Cut a stream into shuffled rows of `length + 1` tokens, each row's last token being the next one's first."""
    count = (len(tokens) - 1) // length
    starts = np.random.default_rng((seed, number)).permutation(count) * length
    cut: Tokens = tokens[starts[:, None] + np.arange(length + 1)]
    return cut


def targets(row_batch: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the token that each position should predict; -100 where the next token is never the model's to write."""
    wanted = row_batch[:, 1:].copy()
    wanted[np.isin(wanted, [special.id for special in NEVER_PREDICTED])] = -100
    return wanted
