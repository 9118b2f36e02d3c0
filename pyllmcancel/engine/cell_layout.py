"""The options of a context, or of an embedder, on which its memory depends; among them the layout of sequences' cells:
one store for all sequences, or a part for each.

In a part of its own a sequence's cells lie in the order of its tokens, whatever else is computed. Attention sums over
cells in the order in which they lie. So an answer depends on its own request only.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.embeddings.workload import Embedding, pooling_of
from pyllmcancel.system import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyllmcancel._native import Model
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.engine")

MAX_CHOSEN = 16_384  # limit of a request's cells if neither the model nor the operator sets one
# Bytes of one element, by the names of `config.CACHE_TYPES`. Quantized types have a scale for each block of 32.
ELEMENT_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
# The share of the machine's memory that full parts of all sequences may take.
MAX_MEMORY_SHARE = 0.5


class CellLayout(NamedTuple):
    """The layout of the cells."""

    n_cells: int  # for all sequences
    unified: bool  # a sequence may use any of them
    too_large: float = 0.0  # bytes of divided cells, if these are the reason why the cells are unified


def cell_layout(model: Model, config: EngineConfig) -> CellLayout:
    """Return the layout for a model.

    If `EngineConfig.kv_unified` is None, a CPU gives each sequence as many cells as one request may have. Memory for
    cells is taken when they are first used. The cells are unified on a device, which takes the memory at once, and
    where the parts would be too large for the machine's memory.
    """
    if not model.can_divide_cells or model.is_offloaded or config.kv_unified is not None:
        unified = not model.can_divide_cells or config.kv_unified is not False
        return CellLayout(config.context_size(model.n_ctx_train), unified)
    part = config.ctx_size or min(model.n_ctx_train, MAX_CHOSEN)
    wanted = CellLayout(part * config.parallel, unified=False)
    needed = wanted.n_cells * cell_bytes(model.metadata, model.n_layer, config)
    if config.parallel > 1 and needed > MAX_MEMORY_SHARE * memory_bytes():
        return CellLayout(config.context_size(model.n_ctx_train), unified=True, too_large=needed)
    return wanted


def report(layout: CellLayout, config: EngineConfig) -> None:
    """Warn of cells that are unified for lack of memory."""
    if layout.too_large:
        logger.warning(
            "cells are unified: those of %d requests would need %.1f GiB, each of them with a whole context. The last"
            " bits of an answer then depend on other requests; a smaller --ctx-size or --parallel prevents that",
            config.parallel,
            layout.too_large / 2**30,
        )


def cell_bytes(metadata: Mapping[str, str], n_layer: int, config: EngineConfig) -> float:
    """Return the bytes of one token's cell in all layers, at most; 0 for a model whose metadata has no sizes."""
    arch = metadata.get("general.architecture", "")

    def numbers(name: str) -> list[int]:
        return list(map(int, re.findall(r"\d+", metadata.get(f"{arch}.{name}", ""))))

    def value(name: str) -> int:
        return max(numbers(name), default=0)

    n_heads = value("attention.head_count")
    head = value("embedding_length") // n_heads if n_heads else 0
    # The metadata may have a number for each layer.
    of_layers = numbers("attention.head_count_kv")
    n_key_heads = sum(of_layers) if len(of_layers) == n_layer else n_layer * (max(of_layers, default=0) or n_heads)
    key = (value("attention.key_length") or head) * ELEMENT_BYTES[config.cache_type_k]
    values = (value("attention.value_length") or head) * ELEMENT_BYTES[config.cache_type_v]
    if value("attention.key_length_mla"):
        values = 0.0  # latent attention computes the values from the keys
    return n_key_heads * (key + values)


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
