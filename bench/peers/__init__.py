"""The servers that are measured: how each is started, and which lines of its log tell what no answer does.

`programs` finds them on this machine, `running` starts one and waits until it is ready. Another server is one more
`Peer` in `PEERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version as installed_version
from pathlib import Path

from bench.peers.programs import (
    ROOT,
    NotAvailableError,
    ask,
    find_own_python,
    find_program,
    find_python,
    package_version,
)
from pyllmcancel.bench.exchange import Target

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a server is started with."""

    model: Path
    port: int
    threads: int
    # Requests that may compute at once; 0: the server's default. A server without batching says so in its notes.
    parallel: int
    ctx_size: int  # cells of the context of all `parallel` requests together
    options: tuple[str, ...] = ()  # further options of its command line, for servers that know them

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server under test."""

    name: str  # as the command line and the report have it
    notes: str  # for readers of the figures: how it was started and why
    # The measured version, and the command that starts it; NotAvailableError if it is not there.
    version: Callable[[], str]
    command: Callable[[Settings], list[str]]
    ready_path: str = "/health"  # answers 200 when the server can generate
    # The headers that carry a key under which a newer request supersedes an older one; none: the server has no such.
    supersede_headers: tuple[str, ...] = ()
    # The line of its log that it writes when it has noticed that a client has left; None: there is none.
    left: re.Pattern[str] | None = None
    # The line for a slot that is given back; group ``n_tokens``: prompt and answer together, as computed.
    released: re.Pattern[str] | None = None


def llamas_options(settings: Settings) -> list[str]:
    """The options that llama-server and this project's server share."""
    return [
        *("--model", str(settings.model), "--host", HOST, "--port", str(settings.port)),
        *("--threads", str(settings.threads), "--ctx-size", str(settings.ctx_size)),
        *(("--parallel", str(settings.parallel)) if settings.parallel else ()),
        *settings.options,
    ]


def pyllmcancel(settings: Settings) -> list[str]:
    # -P: the checkout's own folder has no compiled module and must not hide the installed package.
    return [find_own_python(), "-P", "-m", "pyllmcancel", "serve", *llamas_options(settings)]


def another_build(checkout: Path) -> Peer:
    """Another checkout of this project, with its own `.venv`: for a comparison before and after a change."""
    checkout = checkout.resolve()
    # Neither this process's path nor its environment decides which code runs.
    sources = checkout if (checkout / "pyllmcancel" / "_native.abi3.so").exists() else ""
    python = ["env", f"PYTHONPATH={sources}", str(checkout / ".venv" / "bin" / "python")]
    return replace(
        OURS,
        name="before",
        notes="another build of pyllmcancel, started in the same way",
        version=lambda: ask("git", "-C", str(checkout), "describe", "--always", "--dirty"),
        command=lambda settings: [*python, *pyllmcancel(settings)[1:]],
    )


def find_llama_server() -> str:
    return find_program("LLAMA_SERVER", ROOT / "build" / "tools" / "bin" / "llama-server")


def llama_server_version() -> str:
    lines = ask(find_llama_server(), "--version").splitlines()
    return next((line for line in lines if line.startswith("version")), lines[0])


def llama_cpp_python(settings: Settings) -> list[str]:
    return [
        *(find_python("llama_cpp"), "-P", "-m", "llama_cpp.server"),
        *("--model", str(settings.model), "--host", HOST, "--port", str(settings.port)),
        *("--n_threads", str(settings.threads), "--n_threads_batch", str(settings.threads)),
        # One request at a time: it gets the context that each of the others' slots has.
        *("--n_ctx", str(settings.ctx_size // settings.parallel)),
    ]


OURS = Peer(
    name="pyllmcancel",
    notes="defaults; `--parallel` divides the context's cells among its slots",
    version=lambda: installed_version("pyllmcancel"),
    command=pyllmcancel,
    supersede_headers=Target(url="").supersede_headers,
    left=re.compile(r"request \S+ cancelled \(disconnect\)"),
)
LLAMA_SERVER = Peer(
    name="llama-server",
    notes="defaults (n_batch 2048, n_ubatch 512); the context's cells are divided among its slots",
    version=llama_server_version,
    command=lambda settings: [find_llama_server(), *llamas_options(settings)],
    supersede_headers=("X-Conversation-Id",),
    left=re.compile(r"cancel task, id_task = \d+"),
    released=re.compile(r"stop processing: n_tokens = (?P<n_tokens>\d+)"),
)
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        OURS,
        replace(
            OURS,
            name="pyllmcancel-unified",
            notes="`--kv-unified`: any request can have the whole context",
            command=lambda settings: [*pyllmcancel(settings), "--kv-unified"],
        ),
        LLAMA_SERVER,
        Peer(
            name="llama-cpp-python",
            notes="defaults; computes one request at a time, in the context of one slot; any new request interrupts a "
            "stream",
            version=lambda: package_version(find_python("llama_cpp"), "llama_cpp_python"),
            command=llama_cpp_python,
            ready_path="/v1/models",
        ),
    )
}

__all__ = ["HOST", "PEERS", "NotAvailableError", "Peer", "Settings", "another_build"]
