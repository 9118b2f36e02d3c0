"""pyllmcancel with one set of cells for all requests, so that any of them can have the whole context."""

from __future__ import annotations

from dataclasses import replace

from bench.peers import pyllmcancel

PEER = replace(
    pyllmcancel.PEER,
    name="pyllmcancel-unified",
    notes="`--kv-unified`: any request can have the whole context",
    options=("--kv-unified",),
)
