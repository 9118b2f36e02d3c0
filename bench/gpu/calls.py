"""The calls of a step, by the number of its clients: launches, waits, and copies to and from the host.

Counted in ggml's interface of back ends, which all devices share, by the benchmarks' probe
(`bench/native/backend_calls.hpp`): no profiler is needed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.gpu.graphs import PROMPT, STEPS, WARM_UP, prompt, sizes
from bench.native.probe_module import load_probe

Calls = dict[str, int]


def calls(probe: Any, model: Any, n_clients: int, *, unified: bool, n_threads: int = 1) -> Iterator[dict[str, Any]]:
    """Count the calls of a step that generates a token for each client: one row for the devices, one for the host.

    `read_bytes` and `written_bytes` are those of one step, too. The probe counts from before the model was loaded.
    """
    driver = probe.StepDriver(model, **sizes(n_clients), n_threads=n_threads, kv_unified=unified)
    chance = random.Random(n_clients)
    for seq in range(n_clients):
        driver.open(seq, prompt(chance, model.n_vocab))
        step(probe, driver, [(seq, PROMPT)])
    items = [(seq, 1) for seq in range(n_clients)]
    for _ in range(WARM_UP):
        step(probe, driver, items)
    places: dict[str, Callable[[], Calls]] = {"device": probe.device_calls, "host": probe.host_calls}
    before = {place: count() for place, count in places.items()}
    for _ in range(STEPS):
        step(probe, driver, items)
    for place, count in places.items():
        after = count()
        yield {
            "clients": n_clients,
            "cells": "unified" if unified else "divided",
            "of the": place,
            **{name: (after[name] - before[place][name]) / STEPS for name in after},
        }


def step(probe: Any, driver: Any, items: Sequence[tuple[int, int]]) -> None:
    assert driver.step(items).status == probe.StepStatus.OK


def main() -> None:
    """Print a line for each: ``python -m bench.gpu.calls MODEL LAYERS CLIENTS …``."""
    path, layers, *clients = sys.argv[1:]
    probe = load_probe()
    probe.count_backend_calls()
    model = probe.Model.load(path, n_gpu_layers=int(layers))
    for unified in (True, False):
        for n_clients in map(int, clients):
            for row in calls(probe, model, n_clients, unified=unified, n_threads=min(4, len(os.sched_getaffinity(0)))):
                sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
