"""What a benchmark needs to know of a server: how to start it, when it is ready, and what its log tells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"


class NotAvailableError(Exception):
    """The peer is not installed here; the message says what was looked for, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every peer is started with.

    Attributes
    ----------
    parallel
        Requests that may compute at once. A peer without batching says in its notes that it has no such thing.
    ctx_size
        Cells of the context of all `parallel` requests together.
    """

    model: Path
    port: int
    threads: int
    parallel: int
    ctx_size: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def at_port(self, port: int) -> Settings:
        return replace(self, port=port)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWords:
    """Lines of a peer's log, read as they come, that tell what no OpenAI-compatible answer does.

    Attributes
    ----------
    left
        Written when the server has noticed that a client has left.
    released
        Written when a request gives its slot back; group ``n_tokens``: prompt and answer together, as computed.
    """

    left: re.Pattern[str] | None = None
    released: re.Pattern[str] | None = None


class Peer(Protocol):
    """A server under test.

    Attributes
    ----------
    name
        As the command line and the report have it.
    notes
        What a reader of the figures has to know: how it was started and why.
    ready_path
        Answers 200 when the server can generate.
    session_header
        The header under which a newer request replaces an older one; None: the server has no sessions.
    """

    @property
    def name(self) -> str: ...
    @property
    def notes(self) -> str: ...
    @property
    def ready_path(self) -> str: ...
    @property
    def session_header(self) -> str | None: ...
    @property
    def log_words(self) -> LogWords: ...

    def version(self) -> str:
        """What is measured; NotAvailableError if it is not there."""

    def command(self, settings: Settings) -> list[str]:
        """How it is started; NotAvailableError if it is not there."""

    def environment(self) -> Mapping[str, str]:
        """Variables to add to those of the benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFacts:
    """The facts of a peer; its module adds `version` and `command`."""

    name: str
    notes: str
    ready_path: str = "/health"
    session_header: str | None = None
    log_words: LogWords = field(default_factory=LogWords)

    def environment(self) -> Mapping[str, str]:
        return {}


def find_program(variable: str, default: Path) -> str:
    """Find a program by the environment's `variable`, else at `default`, else by its name on the PATH."""
    named = os.environ.get(variable)
    places = [named] if named else [str(default), default.name]
    for place in places:
        if (found := shutil.which(place)) is not None:
            return found
    raise NotAvailableError(f"{default.name} was not found at {' or '.join(places)}; {variable} names another place")


def find_python(variable: str, package: str) -> str:
    """Find the Python in which `package` is installed: the environment's `variable`, else the one in build/peers."""
    python = find_program(variable, ROOT / "build" / "peers" / "bin" / "python")
    asked = ask(python, "-P", "-c", f"import importlib.util as u; print(u.find_spec({package!r}) is not None)")
    if asked != "True":
        raise NotAvailableError(f"{package} is not installed for {python}; {variable} names another Python")
    return python


def package_version(python: str, distribution: str) -> str:
    """Version of an installed distribution."""
    return ask(python, "-P", "-c", f"import importlib.metadata as m; print(m.version({distribution!r}))")


def ask(*command: str) -> str:
    """What a command says; NotAvailableError if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAvailableError(f"{command[0]} does not run: {error}") from error
    return (done.stdout.strip() or done.stderr.strip()).strip()
