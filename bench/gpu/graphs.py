"""The graphs of a step by the number of its clients: what a device is asked to do must not grow with them."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepStatus

PROMPT = 16
WARM_UP, STEPS = 4, 16
ROOM = PROMPT + WARM_UP + STEPS + 4
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)  # no client is done before the others


def counts(model: Model, n_clients: int, *, unified: bool, gap: bool = False, n_threads: int = 1) -> dict[str, Any]:
    """Count the graphs of a step that generates a token for each client.

    With a `gap` one more client, between the others, has left. `nodes` are those that the CPU computed: twice as many
    are two graphs. A device counts none. `reused` is the share of steps whose graph was the last step's.
    """
    seqs = [seq for seq in range(n_clients + gap) if not gap or seq != (n_clients + 1) // 2]
    context = Context(model, **sizes(n_clients + gap), n_threads=n_threads, kv_unified=unified)
    chance = random.Random(n_clients)
    for seq in seqs:
        context.open(seq, prompt(chance, model.n_vocab), Sampler(model, GREEDY), CancelFlag())
        step(context, [(seq, PROMPT)])
    nodes = [step(context, [(seq, 1) for seq in seqs]) for _ in range(WARM_UP)]
    reused = context.graph_counts().reused
    nodes = [step(context, [(seq, 1) for seq in seqs]) for _ in range(STEPS)]
    after = context.graph_counts()
    return {
        "clients": n_clients,
        "cells": ("unified" if unified else "divided") + (", with a gap" if gap else ""),
        "nodes": max(nodes),
        "splits": after.splits,
        "copies": after.copies,
        "reused": (after.reused - reused) / STEPS,
    }


def sizes(n_seqs: int) -> dict[str, Any]:
    """Return the options of a context that has room for `n_seqs` sequences."""
    return {"n_ctx": max(256, ROOM) * n_seqs, "n_seq_max": n_seqs, "n_batch": max(512, n_seqs)}


def prompt(chance: random.Random, n_vocab: int) -> list[int]:
    return [chance.randrange(100, min(n_vocab, 50_000)) for _ in range(PROMPT)]


def step(context: Context, items: Sequence[tuple[int, int]]) -> int:
    result = context.step(items, fixed_cost=0.0, cost_per_token=1.0)
    assert result.status is StepStatus.OK
    return result.polls


def table(model: Model, clients: Sequence[int], *, n_threads: int = 1) -> Iterator[dict[str, Any]]:
    for unified in (True, False):
        for n_clients in clients:
            yield counts(model, n_clients, unified=unified, n_threads=n_threads)
    yield counts(model, max(clients), unified=False, gap=True, n_threads=n_threads)


def main() -> None:
    """Print a line for each: ``python -m bench.gpu.graphs MODEL LAYERS CLIENTS …``."""
    path, layers, *clients = sys.argv[1:]
    model = Model.load(path, n_gpu_layers=int(layers))
    threads = min(4, len(os.sched_getaffinity(0)))
    for row in table(model, [int(n) for n in clients], n_threads=threads):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
