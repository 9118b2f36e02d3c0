"""An OpenAI-compatible LLM server and library on llama.cpp in which a cancel is exact, immediate and harms nobody.

Reading order follows a request: `request`, `engine`, `registry`, `scheduler`, `engine_loop`, `token_stream`.
"""

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import Engine
from pyllmcancel.errors import Error, RequestCancelled, RequestFailed
from pyllmcancel.request import Delta, Ending, FinishReason, GenerationParams, RequestStatus, Usage
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.token_stream import AsyncStream, ThreadStream

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
    "RequestCancelled",
    "RequestFailed",
    "RequestStatus",
    "SamplingParams",
    "ThreadStream",
    "Usage",
]

__version__ = "0.1.0"
