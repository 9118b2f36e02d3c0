"""Batch invariance: an answer depends on nothing but its own request, not on company, history, cancels or threads.

Attention on the CPU sums over a row's own cells in one order (native/ggml/attention.cpp). So an answer depends on its
request alone, where the sequence's cells lie in that order, and where matrix products treat each row alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set

    from pyllmcancel._native import Context, Model
    from pyllmcancel.config import EngineConfig

UNMEASURED = frozenset({"AVX512", "AMX_INT8", "AVX_VNNI"})  # CPU features whose kernels were never compared


def varies_because(model: Model, context: Context, config: EngineConfig, features: Set[str]) -> str | None:
    """The reason why the last bits of an answer may depend on other requests; None if they do not.

    Parameters
    ----------
    features
        The CPU features that the kernels were compiled for.
    """
    reasons = {
        "a device chooses its kernels by the tokens of a step": model.is_offloaded,
        f"a {context.memory_kind} model's state was not compared": context.memory_kind != "attention",
        "the cells are unified": context.kv_unified and context.n_seq_max > 1,
        "flash attention is off": config.flash_attn == "off",
        "kernels for the types of these weights depend on the tokens of a step": not model.has_invariant_rows,
        "kernels for AVX-512, AVX-VNNI and AMX were not compared": bool(features & UNMEASURED),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
