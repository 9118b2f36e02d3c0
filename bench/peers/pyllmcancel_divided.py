"""pyllmcancel with the context's cells divided among its slots, as llama-server divides them."""

from __future__ import annotations

from dataclasses import replace

from bench.peers import pyllmcancel

PEER = replace(
    pyllmcancel.PEER,
    name="pyllmcancel-divided",
    notes="`--no-kv-unified`: the context's cells are divided among its slots, as llama-server's are",
    options=("--no-kv-unified",),
)
