"""The servers that are measured side by side: one small file each.

Adding another: write a module here whose `PEER` meets `bench.peers.protocol.Peer`, and name it in `PEERS`.
"""

from __future__ import annotations

from bench.peers import llama_cpp_python, llama_server, pyllmcancel, pyllmcancel_unified, xllamacpp
from bench.peers.protocol import NotAvailableError, Peer, Settings

PEERS: dict[str, Peer] = {
    module.PEER.name: module.PEER
    for module in (pyllmcancel, pyllmcancel_unified, llama_server, llama_cpp_python, xllamacpp)
}

__all__ = ["PEERS", "NotAvailableError", "Peer", "Settings"]
