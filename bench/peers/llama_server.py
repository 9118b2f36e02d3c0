"""llama.cpp's own server, built from the same pinned source (``-DPYLLMCANCEL_LLAMA_TOOLS=ON``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.peers.protocol import HOST, ROOT, LogWords, PeerFacts, Settings, ask, find_program


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaServer(PeerFacts):
    """Found by ``LLAMA_SERVER``, in build/tools, or on the PATH."""

    def version(self) -> str:
        said = ask(self._program(), "--version")
        return next((line for line in said.splitlines() if line.startswith("version")), said.splitlines()[0])

    def command(self, settings: Settings) -> list[str]:
        return [
            *(self._program(), "--model", str(settings.model), "--host", HOST, "--port", str(settings.port)),
            *("--threads", str(settings.threads), "--parallel", str(settings.parallel)),
            *("--ctx-size", str(settings.ctx_size)),
        ]

    def _program(self) -> str:
        return find_program("LLAMA_SERVER", ROOT / "build" / "tools" / "bin" / "llama-server")


PEER = LlamaServer(
    name="llama-server",
    notes="defaults (n_batch 2048, n_ubatch 512); the context's cells are divided among its slots",
    session_header="X-Conversation-Id",
    log_words=LogWords(
        left=re.compile(r"cancel task, id_task = \d+"),
        released=re.compile(r"stop processing: n_tokens = (?P<n_tokens>\d+)"),
    ),
)
