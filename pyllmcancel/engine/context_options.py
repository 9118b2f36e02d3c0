"""The options of a context, or of an embedder, on which its memory depends: to measure the memory, and to take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyllmcancel.embeddings.workload import Embedding, pooling_of
from pyllmcancel.engine.cell_layout import cell_layout

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.config import EngineConfig


def options_for(model: Model, config: EngineConfig) -> dict[str, Any]:
    """Return the options of a context or, for a model that pools, of an embedder; ContextError if it should pool and
    does not.
    """
    pooling = pooling_of(model, config.pooling, required=config.embeddings)
    if pooling is None:
        return context_options(model, config)
    return Embedding.context_options(model, pooling, config)


def context_options(model: Model, config: EngineConfig) -> dict[str, Any]:
    """Return the options of a context, for a model that generates."""
    layout = cell_layout(model, config)
    n_seq_max = config.parallel + n_spare_sequences(model, config, unified=layout.unified)
    return {
        "n_ctx": layout.n_cells,
        "n_seq_max": n_seq_max,
        "n_batch": max(config.step_tokens(), n_seq_max),
        "kv_unified": layout.unified,
        **config.memory_options(),
    }


def n_spare_sequences(model: Model, config: EngineConfig, *, unified: bool) -> int:
    """Return the number of sequences for idle prefixes, besides the running ones. Each takes a part of divided cells,
    or a whole state.
    """
    if model.memory_kind == "attention":
        return config.cached_sequences if unified else 0
    # One sequence keeps what a preempted choice has computed: such a memory cannot be swapped out.
    return min(1, config.cached_sequences)
