"""llama-cpp-python's server, from PyPI (``pip install 'llama-cpp-python[server]'`` into a Python of its own)."""

from __future__ import annotations

from dataclasses import dataclass

from bench.peers.protocol import HOST, PeerFacts, Settings, find_python, package_version

VARIABLE = "PEERS_PYTHON"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppPython(PeerFacts):
    """Run by the Python that ``PEERS_PYTHON`` names."""

    def version(self) -> str:
        return package_version(find_python(VARIABLE, "llama_cpp"), "llama_cpp_python")

    def command(self, settings: Settings) -> list[str]:
        return [
            *(find_python(VARIABLE, "llama_cpp"), "-P", "-m", "llama_cpp.server"),
            *("--model", str(settings.model), "--host", HOST, "--port", str(settings.port)),
            *("--n_threads", str(settings.threads), "--n_threads_batch", str(settings.threads)),
            # One request at a time: it gets the context that each of the others' slots has.
            *("--n_ctx", str(settings.ctx_size // settings.parallel)),
        ]


PEER = LlamaCppPython(
    name="llama-cpp-python",
    notes="defaults; computes one request at a time, in the context of one slot; any new request interrupts a stream",
    ready_path="/v1/models",
)
