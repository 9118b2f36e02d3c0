"""Score an exported model on the held-out files and let it write.

`python -m tools.demo_model.evaluate pyllmcancel/models/stdlib-coder.gguf`
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch
from tokenizers import Tokenizer

from . import corpus
from .conversations import render
from .model import Llama, rope_tables
from .packaged import read
from .scoring import bits_per_byte
from .tokenizer import Special

logger = logging.getLogger("demo_model.evaluate")

ASSISTANT = f"{Special.TURN_START}assistant\n"
PROMPTS = {
    "plain": "def hello_world():",
    "class": "class Stack:\n    def __init__(self):",
    "infill": Special.FIM_PREFIX
    + "def read_lines(path):\n    with open("
    + Special.FIM_SUFFIX
    + ") as file:\n        return file.readlines()\n"
    + Special.FIM_MIDDLE,
    "chat": render([("user", "Write a function hello_world")]) + ASSISTANT,
    "greeting": render([("user", "Hello!")]) + ASSISTANT,
}


@torch.inference_mode()
def generate(model: Llama, words: Tokenizer, prompt: str, *, tokens: int, temperature: float, seed: int = 0) -> str:
    """Continue a prompt, without a cache: short texts only.

    Parameters
    ----------
    model, words
        From `packaged.read`.
    prompt
        May hold control tokens by their spelling.
    tokens
        At most this many; an end of text or of turn ends it earlier.
    temperature
        0 takes the likeliest token each time.
    seed
        Of the draws.
    """
    ids = words.encode(prompt).ids
    start = len(ids)
    cosines, sines = rope_tables(model.config, start + tokens)
    draws = torch.Generator().manual_seed(seed)
    while len(ids) < start + tokens:
        logits = model(torch.tensor([ids]), cosines[: len(ids)], sines[: len(ids)])[0, -1]
        if temperature == 0:
            chosen = int(logits.argmax())
        else:
            chosen = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=draws))
        if chosen in (Special.END_OF_TEXT.id, Special.TURN_END.id):
            break
        ids.append(chosen)
    return str(words.decode(ids[start:]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--window", type=int, default=1024, help="tokens of context when scoring")
    parser.add_argument("--tokens", type=int, default=120, help="length of the samples")
    parser.add_argument("--skip-score", action="store_true", help="samples only")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(2)
    model, words = read(options.model)
    if not options.skip_score:
        _, held_out = corpus.split(corpus.collect())
        score = bits_per_byte(model, words, held_out, options.window)
        logger.info("%d held-out files, %.4f bits per byte", len(held_out), score)
    for name, prompt in PROMPTS.items():
        for temperature in (0.0, 0.6):
            text = generate(model, words, prompt, tokens=options.tokens, temperature=temperature)
            logger.info("--- %s, temperature %.1f\n%s%s", name, temperature, prompt, text)


if __name__ == "__main__":
    main()
