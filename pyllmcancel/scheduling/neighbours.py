"""Running sequences that are not neighbours, and the moves that make them neighbours again.

With divided cells llama.cpp computes sequences together whose numbers follow each other: a *run*. Each run of a step is
a graph of its own, which reads all weights and is built anew. A request that ends between others leaves two runs. If no
new request takes its place, one of the others is moved there.

A move copies cells. So it waits until the graphs that the runs have cost are worth as much as the copy. Then all copies
together never take longer than the additional graphs before them did, whatever comes and goes.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

# The copied bytes that take as long as a graph does beside its rows, as a share of the model's weights. SmolLM2 (98 MB)
# on one core: an additional graph takes 5 ms, in which 10 to 14 MB are copied. On a device a graph is faster, and a
# copy goes through the host: 3 TB/s of its memory to 10 GB/s, twice. That is arithmetic, it was not measured.
GRAPH_SHARE = 1 / 8
GRAPH_SHARE_OF_DEVICE = 1 / 512


def bytes_of_graph(model_bytes: int, *, on_cpu: bool) -> int:
    return int(model_bytes * (GRAPH_SHARE if on_cpu else GRAPH_SHARE_OF_DEVICE))


class Move(NamedTuple):
    """A running sequence, and the idle one whose place it takes."""

    seq: int
    target: int


def runs_of(seqs: Iterable[int]) -> list[list[int]]:
    """Return the runs of neighbours among these sequences, in their order."""
    runs: list[list[int]] = []
    for seq in sorted(seqs):
        if runs and runs[-1][-1] + 1 == seq:
            runs[-1].append(seq)
        else:
            runs.append([seq])
    return runs


def best_move(running: Collection[int], movable: Mapping[int, int], idle: Mapping[int, int]) -> Move | None:
    """Return the move after which the running sequences are nearest to one run; None if no move brings them nearer.

    The fewest runs are best, then the longest ones (by the sum of their squared lengths), then the fewest tokens to
    copy. Each move gains something of the first two, so that a row of moves comes to an end. `movable` and `idle` have
    the running and the idle sequences that can be moved, each with its number of tokens.
    """
    runs = runs_of(running)
    if len(runs) < 2:
        return None
    run_of = {seq: run for run in runs for seq in run}
    places = sorted({seq for run in runs for seq in (run[0] - 1, run[-1] + 1) if seq in idle})
    ends = sorted({seq for run in runs for seq in (run[0], run[-1]) if seq in movable})
    moves = [Move(seq, place) for seq in ends for place in places]
    ranked = ((*_gain(move, run_of), -movable[move.seq] - idle[move.target], move) for move in moves)
    best = max(ranked, default=None, key=lambda one: one[:3])
    return best[-1] if best is not None and best[:2] > (0, 0) else None


def _gain(move: Move, run_of: Mapping[int, list[int]]) -> tuple[int, int]:
    """Return how many runs a move saves, and by how much the sum of squares grows."""
    seq, place = move

    def length_beside(neighbour: int) -> int:
        run = run_of.get(neighbour, ())
        return 0 if neighbour == seq else len(run) - (seq in run)

    left, right, before = length_beside(place - 1), length_beside(place + 1), len(run_of[seq])
    n_saved = (before == 1) + (left > 0) + (right > 0) - 1
    return n_saved, (left + 1 + right) ** 2 - left**2 - right**2 + (before - 1) ** 2 - before**2


class GraphDebt:
    """The additional graphs of steps so far, in bytes that could have been copied instead."""

    def __init__(self, bytes_of_graph: int) -> None:
        self.bytes_of_graph = bytes_of_graph
        self._bytes = 0.0
        self._price: float | None = None  # of the best move, when it was last looked for

    def note_step(self, n_graphs: int) -> None:
        self._bytes += (n_graphs - 1) * self.bytes_of_graph

    def clear(self) -> None:
        """Forget it: there is nothing to move."""
        self._bytes, self._price = 0.0, None

    def covers(self, n_bytes: float) -> bool:
        """Return whether a move that copies `n_bytes` is due. Its bytes are then subtracted."""
        if self._bytes < n_bytes:
            self._price = n_bytes
            return False
        self._bytes -= n_bytes
        self._price = None
        return True

    @property
    def is_due(self) -> bool:
        """True if the move that was last looked for is due now."""
        return self._price is not None and self._bytes >= self._price
