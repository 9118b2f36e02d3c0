"""All measurements, by name, in the order in which they are made."""

from __future__ import annotations

from bench.side_by_side import (
    aiperf_runs,
    cancel_in_company,
    cancel_latency,
    cancelled_load,
    queued_hang_up,
    resources,
    shutdown,
    stop_then_next,
    throughput,
    typing_storms,
)
from bench.side_by_side.measurement import Measurement

MEASUREMENTS: dict[str, Measurement] = {
    measurement.name: measurement
    for module in (
        resources,
        throughput,
        cancel_latency,
        cancel_in_company,
        queued_hang_up,
        typing_storms,
        stop_then_next,
        cancelled_load,
        shutdown,
        aiperf_runs,
    )
    for measurement in module.MEASUREMENTS
}
