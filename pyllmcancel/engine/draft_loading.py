"""Loading a draft model beside the model that it drafts for, and the checks that it can.

The checks come before any weights are loaded, which may take minutes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.drafting.sources import HEADS, MODEL
from pyllmcancel.embeddings.workload import pooling_of
from pyllmcancel.engine.fitting import placed
from pyllmcancel.engine.host_memory import check_memory_of_both
from pyllmcancel.errors import ModelLoadError, PlacementError, UsageError
from pyllmcancel.models import packaged_model_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyllmcancel._native import Model
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.engine")

# llama.cpp's rule (common/speculative.cpp): vocabularies are often padded to different lengths, and the first tokens,
# which no text contains, have different names in models of one family.
MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5


def has_draft_model(config: EngineConfig) -> bool:
    return config.draft_model is not None and MODEL in config.draft_sources


def has_heads(config: EngineConfig) -> bool:
    return HEADS in config.draft_sources


def check_heads(config: EngineConfig, native: Any) -> None:
    """Check, from the file's header, that the model has heads of its own, and that they can draft.

    Raises UsageError or ModelLoadError.
    """
    if has_draft_model(config):
        raise UsageError("answers are drafted by a draft model or by the model's own heads, not by both")
    path = Path(config.model or packaged_model_path())
    model = native.Model.load(path, placement=config.placement, without_weights=True, heads=True)
    if pooling_of(model, config.pooling, required=config.embeddings) is not None:
        raise UsageError("heads draft text, and this model makes embeddings")
    check_memory_kind(model, f"the heads of {path}")
    if model.n_heads == 0:
        raise UsageError(f"{path} has no heads that guess further tokens, or none that can be computed here")


def check_drafting(config: EngineConfig, native: Any) -> None:
    """Check, from the files' headers, that the draft model can draft for the model, and that both fit into memory.

    Raises UsageError, PlacementError or ModelLoadError.
    """
    assert config.draft_model is not None
    path = Path(config.model or packaged_model_path())
    model = native.Model.load(path, placement=config.placement, without_weights=True)
    try:
        draft = native.Model.load(config.draft_model, placement=config.draft_placement, without_weights=True)
    except ModelLoadError as error:
        raise ModelLoadError(f"the draft model cannot be loaded: {error}") from error
    if pooling_of(model, config.pooling, required=config.embeddings) is not None:
        raise UsageError("a draft model drafts text, and this model makes embeddings")
    check_memory_kind(model, "the model")
    name = f"the draft model {config.draft_model}"
    if pooling_of(draft, "auto") is not None:
        raise UsageError(f"{name} makes embeddings, and does not generate text")
    check_memory_kind(draft, name)
    if (difference := vocabulary_difference(model, draft)) is not None:
        raise UsageError(f"{name} has another vocabulary than the model: {difference}")
    if not model.is_offloaded and not draft.is_offloaded:
        check_memory_of_both(path, model, draft, config)


def check_memory_kind(model: Model, name: str) -> None:
    if model.memory_kind != "attention":
        why = f"its memory is {model.memory_kind}, and a rejected draft cannot be undone in it"
        raise UsageError(f"{name} cannot be used for drafts of a model: {why}")


def load_draft_model(config: EngineConfig, native: Any, progress: Callable[[float], bool | None] | None) -> Model:
    """Load the draft model, after the model and after `check_drafting`. `progress` is called with 1, since the model
    is loaded; returning False cancels the load.

    Raises UsageError, PlacementError, ModelLoadError or LoadCancelled.
    """
    on_progress = None if progress is None else lambda _fraction: progress(1.0)
    try:
        own = placed(config.of_draft_model(), native, on_progress)
        draft: Model = native.Model.load(
            own.model, placement=own.placement, mmap=own.mmap, mlock=own.mlock, progress=on_progress
        )
    except (ModelLoadError, PlacementError) as error:
        raise type(error)(f"the draft model cannot be loaded: {error}") from error
    logger.info("answers are drafted by %s", own.model)
    return draft


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
