"""An OpenAI-compatible LLM server and library on llama.cpp in which a cancel is exact, immediate and harms no other.

A request passes through `server.generate`, `engine.engine`, `engine.loop` and `engine.generation`. A cancel passes
through `requests.watcher`, `engine.engine`, `cancellation` and `requests.endings`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyllmcancel.cancellation import CancelReason
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.engine.compiled import devices
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.errors import Error, RequestCancelled, RequestFailed
    from pyllmcancel.events import Delta, Ending, FinishReason, RequestStatus, Usage
    from pyllmcancel.placement import Placement
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.requests.token_stream import AsyncStream, ThreadStream
    from pyllmcancel.sampling import SamplingParams

    __version__: str  # of the installed package: pyproject.toml has it

__all__ = [
    "AsyncStream",
    "CancelReason",
    "Delta",
    "Ending",
    "Engine",
    "EngineConfig",
    "Error",
    "FinishReason",
    "GenerationParams",
    "Placement",
    "RequestCancelled",
    "RequestFailed",
    "RequestStatus",
    "SamplingParams",
    "ThreadStream",
    "Usage",
    "devices",
]

_MODULES = {
    "cancellation": ("CancelReason",),
    "config": ("EngineConfig",),
    "engine.compiled": ("devices",),
    "engine.engine": ("Engine",),
    "errors": ("Error", "RequestCancelled", "RequestFailed"),
    "events": ("Delta", "Ending", "FinishReason", "RequestStatus", "Usage"),
    "placement": ("Placement",),
    "requests.request": ("GenerationParams",),
    "sampling": ("SamplingParams",),
    "requests.token_stream": ("AsyncStream", "ThreadStream"),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command can be interrupted by Ctrl-C before NumPy is imported."""
    if name == "__version__":
        from importlib import metadata

        return globals().setdefault(name, metadata.version(__name__))
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
