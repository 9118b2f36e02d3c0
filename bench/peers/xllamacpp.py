"""xllamacpp's server, from PyPI (``pip install xllamacpp`` into a Python of its own)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bench.peers import llama_server
from bench.peers.protocol import HOST, PeerFacts, Settings, find_python, package_version

VARIABLE = "PEERS_PYTHON"
LAUNCHER = Path(__file__).with_name("launch_xllamacpp.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xllamacpp(PeerFacts):
    """Run by the Python that ``PEERS_PYTHON`` names."""

    def version(self) -> str:
        return package_version(find_python(VARIABLE, "xllamacpp"), "xllamacpp")

    def command(self, settings: Settings) -> list[str]:
        parameters = {
            "model": str(settings.model),
            "host": HOST,
            "port": settings.port,
            "threads": settings.threads,
            "parallel": settings.parallel,
            "ctx_size": settings.ctx_size,
        }
        # -P: this folder has a module of the package's name.
        return [find_python(VARIABLE, "xllamacpp"), "-P", str(LAUNCHER), json.dumps(parameters)]


PEER = Xllamacpp(
    name="xllamacpp",
    notes="llama-server's code, newer, in a wheel that is compiled for any x86-64 rather than this machine; defaults",
    session_header=llama_server.PEER.session_header,
    log_words=llama_server.PEER.log_words,
)
