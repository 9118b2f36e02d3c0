"""The event `stats`: live requests, resources in use, and counts since the start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyllmcancel.server.running.metrics import n_paused

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.server.live.events import Stats
    from pyllmcancel.server.running.metrics import EngineMetrics


def stats_of(engine: Engine, metrics: EngineMetrics) -> Stats:
    counts, occupancy, totals = engine.counts(), engine.occupancy(), metrics.totals()
    return {
        "at": time.monotonic(),
        "waiting": counts.waiting,
        "running": counts.running,
        "cancelling": counts.cancelling,
        "paused": n_paused(engine),
        "slots_used": occupancy.slots,
        "cells_used": occupancy.cells,
        "cells_idle": occupancy.idle_cells,
        "generated_tokens": engine.n_generated,
        "prompt_tokens": totals.prompt_tokens,
        "computed_tokens": totals.computed_tokens,
        "wasted_tokens": totals.wasted_tokens,
        "reused_tokens": totals.reused_tokens,
        "saved_tokens": totals.saved_tokens,
        "aborted_steps": totals.aborted_steps,
        "cancels": dict(totals.cancels),
    }
