"""The memory that a model will take, measured without loading it: for who decides which models are loaded together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.engine.cell_layout import options_for
from pyllmcancel.engine.fitting import resolved
from pyllmcancel.engine.host_memory import CELLS_STEP, available_memory, beside_model, file_size
from pyllmcancel.errors import PlacementError
from pyllmcancel.models import packaged_model_path
from pyllmcancel.placement import gib

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig


class Need(NamedTuple):
    """Bytes, of the CPU's memory and of devices together."""

    weights: int  # of the files: the model, and beside it a projector, kept pictures, a draft model
    # Without a device those of a context that nobody asked for do not count: they take memory when they are used.
    cells: int
    buffers: int  # of the computation


def measured(config: EngineConfig, native: Any) -> Need:
    """Return the memory that a model and its context will take, by llama.cpp's own account.

    UsageError, ModelLoadError or ContextError if the model cannot be loaded so; PlacementError if it takes more than
    the machine's whole memory, so that it cannot be loaded whatever else is unloaded.
    """
    path = Path(config.model or packaged_model_path())
    placement, used = resolved(config.placement, native)
    sketch = native.Model.load(path, placement=placement, without_weights=True)
    options = options_for(sketch, config)
    if not used and not config.ctx_size:
        options["n_ctx"] = min(options["n_ctx"], CELLS_STEP * options["n_seq_max"])
    if placement.n_gpu_layers == "auto":
        placement = replace(placement, n_gpu_layers="all")  # the sum is the same, wherever the layers are
    uses = native.memory_use(path, placement, True, **options)
    # The weights that are repacked for the CPU are not among llama.cpp's.
    own = max(file_size(path), sum(use.weights for use in uses))
    draft = 0 if config.draft_model is None else file_size(config.draft_model)
    need = Need(own + beside_model(config) + draft, sum(use.cells for use in uses), sum(use.buffers for use in uses))
    memory = available_memory()
    if not used and config.placement.fit and memory is not None and sum(need) > memory.total:
        raise PlacementError(
            f"{path} does not fit into memory: weights {gib(need.weights)}, cells {gib(need.cells)}, buffers"
            f" {gib(need.buffers)}, and the machine has {gib(memory.total)}. With --fit off nothing is measured"
        )
    return need
