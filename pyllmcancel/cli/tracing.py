"""``--otel``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.errors import UsageError

if TYPE_CHECKING:
    from pyllmcancel.server.running.tracing import Tracing


def open_tracing(*, wanted: bool) -> Tracing | None:
    """Return the tracing of requests, if the option asks for it; UsageError if it cannot be started."""
    if not wanted:
        return None
    try:
        from pyllmcancel.server.running.tracing import Tracing
    except ModuleNotFoundError as error:
        raise UsageError(f"--otel needs {error.name}: pip install 'pyllmcancel[otel]'") from None
    try:
        return Tracing()
    except ValueError as error:
        raise UsageError(f"--otel: a variable of OpenTelemetry has a wrong value: {error}") from None
