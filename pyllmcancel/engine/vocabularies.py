"""The check that a draft model's tokens are those of the model it drafts for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel._native import Model

# llama.cpp's rule (common/speculative.cpp): vocabularies are often padded to different lengths, and the first tokens,
# which no text contains, have different names in models of one family.
MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5


def vocabulary_difference(model: Model, draft: Model) -> str | None:
    """Return the reason why tokens of `draft` mean nothing to `model`; None if both have the same vocabulary.

    A few tokens more or less at the end are allowed: nobody is given a token that it does not have.
    """
    kinds = [one.metadata.get("tokenizer.ggml.model") for one in (model, draft)]
    if kinds[0] != kinds[1]:
        return f"its tokenizer is {kinds[1]}, and the model's is {kinds[0]}"
    if abs(model.n_vocab - draft.n_vocab) > MAX_SIZE_DIFFERENCE:
        return f"its vocabulary has {draft.n_vocab:,} tokens, and the model's has {model.n_vocab:,}"
    for name, key in (("bos", "tokenizer.ggml.add_bos_token"), ("eos", "tokenizer.ggml.add_eos_token")):
        adds = [_adds(one, name, key) for one in (model, draft)]
        ids = [one.special_tokens.get(name) for one in (model, draft)]
        if adds[0] != adds[1] or (adds[0] and ids[0] != ids[1]):
            return f"its {name} token is {_worded(adds[1], ids[1])}, and the model's is {_worded(adds[0], ids[0])}"
    pieces = zip(model.pieces(special=True), draft.pieces(special=True), strict=False)  # of different lengths
    for token, (ours, theirs) in enumerate(pieces):
        if token >= FIRST_COMPARED and ours != theirs:
            return f"its token {token} is {_text(theirs)}, and the model's is {_text(ours)}"
    return None


def _adds(model: Model, name: str, key: str) -> bool:
    """Return whether the model's tokenizer puts the token at an end of each text."""
    return model.adds_bos if name == "bos" else model.metadata.get(key) == "true"


def _worded(adds: bool, token: int | None) -> str:
    return f"{token}, {'added' if adds else 'not added'} to texts"


def _text(piece: bytes) -> str:
    return repr(piece.decode(errors="backslashreplace"))
