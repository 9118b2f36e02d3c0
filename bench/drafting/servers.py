"""The servers that take turns, and what their answers say of drafts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers import LLAMA_SERVER, OURS, NotAvailableError, Peer, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.side_by_side.measurement import Subject, subject_of
from pyllmcancel.bench.client import Exchange, Outcome

PARALLEL, CELLS = 8, 8 * 2048
OFF, ON, LLAMA = "off", "on", "llama-server"
NGRAMS = ("ngram-simple", "ngram-mod")


@dataclass(frozen=True, slots=True)
class Contender:
    """A server as it is started; its answers are compared with those of `reference`."""

    name: str
    peer: Peer
    options: tuple[str, ...]
    reference: str


def contenders(without: Sequence[str], drafting: Sequence[str]) -> dict[str, Contender]:
    """Return ours without drafting and with it, by these options, and llama-server with each kind of draft."""
    found = [
        Contender(OFF, OURS, tuple(without), OFF),
        Contender(ON, OURS, tuple(drafting), OFF),
        Contender(LLAMA, LLAMA_SERVER, (), LLAMA),
        *(Contender(f"{LLAMA} {kind}", LLAMA_SERVER, ("--spec-type", kind), LLAMA) for kind in NGRAMS),
    ]
    return {one.name: one for one in found}


@dataclass(slots=True)
class Bench:
    """The conditions of a run, and the servers that run, by their contenders' names."""

    model: Path
    threads: int
    contenders: dict[str, Contender]
    logs: Path | None = None
    subjects: dict[str, Subject] = field(default_factory=dict)

    def running(self, name: str, *options: str) -> AbstractContextManager[RunningPeer]:
        """Start a server of this name, with further options; blocks until it is ready, and at its end."""
        contender = self.contenders[name]
        settings = Settings(
            model=self.model,
            port=free_port(),
            threads=self.threads,
            parallel=PARALLEL,
            ctx_size=CELLS,
            options=(*contender.options, *options),
        )
        log = None if self.logs is None else self.logs / f"{name.replace(' ', '-')}.log"
        return running(contender.peer, settings, log)

    @asynccontextmanager
    async def all_running(self, names: Iterable[str], missing: list[str]) -> AsyncIterator[None]:
        """Start these servers; `missing` gets a line for each that is not there."""
        async with AsyncExitStack() as stack:
            for name in names:
                try:
                    peer = stack.enter_context(self.running(name))
                except NotAvailableError as error:
                    missing.append(f"{name}: {error}")
                    continue
                self.subjects[name] = await stack.enter_async_context(subject_of(peer, effort=1.0, seed=1))
            yield

    def take_part(self, names: Iterable[str] | None = None) -> dict[str, Subject]:
        """Return the servers of these names that run; by default all."""
        return {name: found for name, found in self.subjects.items() if names is None or name in names}

    def reference(self, name: str) -> str:
        return self.contenders[name].reference


def in_turn(subjects: dict[str, Subject], turn: int) -> list[tuple[str, Subject]]:
    """Return the servers in the order of this turn: each time another one is the first."""
    entries = list(subjects.items())
    first = turn % max(len(entries), 1)
    return entries[first:] + entries[:first]


def complete(exchange: Exchange) -> Exchange:
    """Return the exchange; RuntimeError if it is no complete answer."""
    if exchange.outcome is not Outcome.OK:
        raise RuntimeError(f"no answer: {exchange.error} {exchange.detail}")
    return exchange


def drafts(exchanges: Iterable[Exchange]) -> dict[str, int]:
    """Return how many tokens were drafted, and how many of these were accepted."""
    timings = [exchange.timings for exchange in exchanges]
    return {name: sum(told.get(field, 0) for told in timings) for name, field in DRAFTS.items()}


DRAFTS = {"drafted": "draft_n", "accepted": "draft_n_accepted"}


def said(exchange: Exchange) -> Any:
    """Return what can be compared with another answer to the same request: tokens, where the server sends them."""
    return exchange.tokens or (exchange.text, exchange.completion_tokens)
