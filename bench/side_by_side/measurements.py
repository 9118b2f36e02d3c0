"""All measurements, by name, in the order in which they are made."""

from __future__ import annotations

from importlib import import_module

from bench.side_by_side.measurement import Measurement

MODULES = (
    *("resources", "load", "cancel_latency", "cancel_in_company", "queued_hang_up", "typing_storms", "stop_then_next"),
    *("shutdown", "aiperf"),
)
MEASUREMENTS: dict[str, Measurement] = {
    found.name: found for name in MODULES for found in import_module(f"bench.side_by_side.{name}").MEASUREMENTS
}
