"""The cost of crossing from Python into a step and back, and how long the GIL is held for it.

The step computes nothing: one sequence holds all cells but one, and llama.cpp finds no room. So what is timed is the
boundary, and the core's and llama.cpp's checks, which bare C++ does as well. How long Cython holds the GIL is seen from
outside, around steps that do compute: their `items` are exhausted just before the GIL is released, and the first row is
made just after it is back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.native.tables import Row, Table, summary

CELLS = 256
N_SEQ = 9  # the first fills the cells, the others ask for room
BATCHES = (1, 8)


class Steps:
    """The same sequences on the three ways into the core: Cython, pybind11 and bare C++."""

    def __init__(self, native: Any, probe: Any, path: str, n_prompt: int) -> None:
        from pyllmcancel.sampling import SamplingParams

        options = {"n_ctx": CELLS, "n_seq_max": N_SEQ, "n_batch": CELLS, "n_threads": 1}
        self.native = native
        model = native.Model.load(path)
        self.cython = native.Context(model, **options)
        self.pybind = probe.StepDriver(probe.Model.load(path), **options)
        tokens = [token % model.n_vocab for token in range(1, n_prompt + 1)]
        sampling = SamplingParams(temperature=0.0)
        self.flags = [native.CancelFlag() for _ in range(N_SEQ)]
        for seq, flag in enumerate(self.flags):
            self.cython.open(seq, tokens, native.Sampler(model, sampling), flag)
            self.pybind.open(seq, tokens)

    @classmethod
    def that_find_no_room(cls, native: Any, probe: Any, path: str) -> Steps:
        """Sequence 0 leaves one cell, and each of the others asks for two."""
        steps = cls(native, probe, path, n_prompt=CELLS)
        for step in (steps.cython.step, steps.pybind.step):
            step([(0, CELLS - 1)])
        return steps

    def close(self) -> None:
        """Take every request off its sequence."""
        for seq in range(N_SEQ):
            self.cython.close(seq, keep=False)
            self.pybind.close(seq, keep=False)


def measure(native: Any, probe: Any, path: str, name: str, *, calls: int = 2000, rounds: int = 7) -> Table:
    """Time a call of step() that computes nothing, each way, and the GIL's holds around one that computes."""
    table = Table("step-boundary", "a step that computes nothing, and how long a step holds the GIL", "µs")
    steps = Steps.that_find_no_room(native, probe, path)
    for n_seq in BATCHES:
        items = [(seq, 2) for seq in range(1, n_seq + 1)]
        status = steps.cython.step(items).status.name, steps.pybind.step(items).status.name
        if status != ("NO_ROOM", "NO_ROOM"):
            raise RuntimeError(f"a step that was to find no room said {status}")
        rates: dict[str, list[float]] = {"bare C++": [], "Cython": [], "pybind11": []}
        for _ in range(rounds):
            rates["bare C++"].append(steps.pybind.bare_steps(items, calls) / calls / 1e3)
            rates["Cython"].append(per_call(steps.cython.step, items, calls) / 1e3)
            rates["pybind11"].append(per_call(steps.pybind.step, items, calls) / 1e3)
        bare = statistics.median(rates["bare C++"])
        for way, values in rates.items():
            row: Row = {"model": name, "way": way, "what": "no work", "sequences": n_seq}
            table.rows.append(row | summary(values) | {"over_bare": round(statistics.median(values) - bare, 3)})
    steps.close()
    table.rows.extend(gil_rows(native, probe, path, name))
    return table


def per_call(step: Callable[[list[tuple[int, int]]], Any], items: list[tuple[int, int]], calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        step(items)
    return (time.perf_counter_ns() - begin) / calls


def gil_rows(native: Any, probe: Any, path: str, name: str) -> Iterator[Row]:
    for n_seq in BATCHES:
        steps = Steps(native, probe, path, n_prompt=4)
        for seq in range(n_seq):
            steps.cython.step([(seq, 4)])
            steps.pybind.step([(seq, 4)])
        holds: dict[str, list[float]] = {"Cython": [], "pybind11": []}
        n_steps = CELLS // (n_seq * 2) - 8
        for _ in range(n_steps):
            items = [(seq, 1) for seq in range(n_seq)]
            holds["Cython"].append(cython_hold_ns(native, steps.cython, items) / 1e3)
            steps.pybind.step(items)
            hold = steps.pybind.last_hold()
            holds["pybind11"].append((hold.before_ns + hold.after_ns) / 1e3)
        steps.close()
        for way, values in holds.items():
            row: Row = {"model": name, "way": way, "what": "GIL held", "sequences": n_seq}
            yield row | summary(values) | {"over_bare": round(statistics.median(values), 3)}


def cython_hold_ns(native: Any, context: Any, items: list[tuple[int, int]]) -> int:
    """Time before the GIL is released and after it was regained, from the outside: see this module's docstring."""
    moments = [0, 0]

    def handed_over() -> Iterator[tuple[int, int]]:
        yield from items
        moments[0] = time.perf_counter_ns()

    original = native.StepRow

    def first_row(*values: Any) -> Any:
        moments[1] = moments[1] or time.perf_counter_ns()
        return original(*values)

    native.StepRow = first_row
    try:
        begin = time.perf_counter_ns()
        context.step(handed_over())
        end = time.perf_counter_ns()
    finally:
        native.StepRow = original
    if moments[1] == 0:
        raise RuntimeError("pyllmcancel._native no longer makes its rows with StepRow: this measurement is void")
    return (moments[0] - begin) + (end - moments[1])
