"""Batch invariance: an answer depends on its own request only, not on company, history, cancels or threads.

Attention on the CPU sums over a row's own cells in one order (native/ggml/attention.cpp). An answer is therefore
invariant if its sequence's cells lie in that order, and if matrix products treat each row alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set

    from pyllmcancel._native import Context, Model
    from pyllmcancel.config import EngineConfig

UNMEASURED = frozenset({"AMX_INT8", "AVX_VNNI"})  # CPU features whose kernels were never compared


def kernels_were_compared(features: Set[str]) -> bool:
    """Return whether the kernels for these CPU features were compared bit by bit (tests/native/test_same_bits.py).

    Those of SSE4.2, of AVX2, and of AVX-512 with its VNNI were: without VNNI, K-quants take other kernels. A wheel for
    every processor also has kernels for AVX alone, and for SSE2, which has none of our attention: their bits differ.
    """
    if not features.isdisjoint(UNMEASURED) or "SSSE3" not in features:
        return False
    return ("AVX2" in features or "AVX" not in features) and ("AVX512_VNNI" in features or "AVX512" not in features)


def varies_because(model: Model, context: Context, config: EngineConfig, features: Set[str]) -> str | None:
    """Return the reason why the last bits of an answer may depend on other requests; None if they do not.

    The kernels were compiled for the CPU's `features`.
    """
    reasons = {
        "a device chooses its kernels by the number of tokens in a step": model.is_offloaded,
        f"invariance was not measured for the state of a {context.memory_kind} model": context.memory_kind
        != "attention",
        "the cells are unified": context.kv_unified and context.n_seq_max > 1,
        "flash attention is off": config.flash_attn == "off",
        "kernels for the types of these weights depend on the number of tokens in a step": not model.has_invariant_rows,
        "invariance was not measured for the kernels of this processor": not kernels_were_compared(features),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
