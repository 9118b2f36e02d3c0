"""All measurements, by name, in the order in which they are made."""

from __future__ import annotations

from bench.side_by_side import aiperf, cancel_in_company, cancel_latency, load, process, queued_hang_up, scenarios
from bench.side_by_side.measurement import Measurement

MODULES = (process, load, cancel_latency, cancel_in_company, queued_hang_up, scenarios, aiperf)
MEASUREMENTS: dict[str, Measurement] = {found.name: found for module in MODULES for found in module.MEASUREMENTS}
