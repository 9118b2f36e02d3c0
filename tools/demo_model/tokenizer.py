"""Byte-level BPE that llama.cpp reproduces under the name `gpt-2`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 4096


class Special(StrEnum):
    """Control tokens, in the order of their ids, which start at 0.

    llama.cpp finds the fill-in-the-middle and end-of-turn tokens by exactly these spellings.
    """

    END_OF_TEXT = "<|endoftext|>"
    TURN_START = "<|im_start|>"
    TURN_END = "<|im_end|>"
    FIM_PREFIX = "<|fim_prefix|>"
    FIM_SUFFIX = "<|fim_suffix|>"
    FIM_MIDDLE = "<|fim_middle|>"

    @property
    def id(self) -> int:
        """Token id."""
        return list(Special).index(self)


# Part of prompts only: a model that learnt to predict them would write them into its answers.
NEVER_PREDICTED = (Special.TURN_START, Special.FIM_PREFIX, Special.FIM_SUFFIX, Special.FIM_MIDDLE)


def train(texts: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Learn the merges.

    Parameters
    ----------
    texts
        Training documents; held-out files must not be among them, or bits per byte would flatter the model.
    vocabulary_size
        Control tokens and the 256 bytes included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(Special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Read a tokenizer written by `Tokenizer.save`."""
    return Tokenizer.from_file(str(path))
