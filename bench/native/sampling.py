"""The cost of choosing a token from one row of logits, beside llama.cpp's samplers as its own server chains them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.native.tables import Row, Table, ratios, summary
from pyllmcancel.sampling import SAMPLERS

LOGIT_STD = 2.5
CASES: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0.0},
    "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05": {"temperature": 0.8},
    "temperature 0.8, top_k off": {"temperature": 0.8, "top_k": 0},
    "temperature 0, 5 logprobs": {"temperature": 0.0, "n_logprobs": 5},
}


def measure(probe: Any, model: Any, name: str, *, count: int = 60) -> Table:
    """Microseconds for a row, sampled so often; logprobs have no counterpart in llama.cpp's samplers."""
    table = Table("sampling", "one row of logits to one token", "µs")
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal(model.n_vocab) * LOGIT_STD).astype(np.float32).tolist()
    for case, sampling in CASES.items():
        params = probe.SamplingParams(samplers=list(SAMPLERS), **sampling)
        ours = [ns / 1e3 for ns in probe.sampler_times(model, params, logits, count)]
        theirs = [ns / 1e3 for ns in probe.chain_times(model, params, logits, count)]
        for who, times in (("core", ours), ("llama.cpp's chain", theirs)):
            row: Row = {"model": name, "n_vocab": model.n_vocab, "case": case, "who": who}
            table.rows.append(row | summary(times, 1) | {"ratio": ratios(times, theirs)})
    return table
