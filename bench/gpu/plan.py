"""A plan of measurements on a GPU, in runs of at most nine minutes: ``python -m bench.gpu --out DIR``.

Each run goes on where the last one ended. A measurement is a JSON line of ``DIR/plan.jsonl`` as soon as it is made, and
``DIR/plan.md`` has tables of them. The first run on a machine builds, and writes the builds into ``DIR`` as archives:
with these, and ``plan.jsonl``, another machine goes on. ``--toy`` tries all of it on a small model. The exit status is
0 when all is done, 2 when the command is to be run again, and 1 when a server did not run (see NOT MEASURED).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu import products
from bench.gpu.asker import Asker
from bench.gpu.ledger import Ledger, Row, TimeOverError
from bench.gpu.parts import Lengths, Part, again_part, answer_part, company_part, prompt_part, rate_part
from bench.peers import LLAMA_SERVER, OURS, NotAvailableError, Peer, Settings
from bench.peers.programs import ROOT, find_own_python
from bench.peers.running import RunningPeer, free_port, running
from bench.random_model import FORMATS, SHAPES, matrices, write_random_model
from bench.tables import head, line
from pyllmcancel.models import packaged_model_path

LOADING = 40.0  # seconds until a server is ready, at most
WRITING = 250e6  # weights of a model that are written in a second, at least: 140 MB
UNIFIED, DIVIDED = ("--kv-unified",), ("--no-kv-unified",)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, by a name and the name of its shape; cells of each of the clients' slots."""

    name: str
    shape: str | None
    slot: int

    def path(self, folder: Path) -> Path:
        return packaged_model_path() if self.shape is None else folder / f"{self.name}.gguf"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked."""

    models: tuple[Subject, ...]
    prompts: tuple[int, ...]
    clients: tuple[int, ...]
    company_prompt: int
    lengths: Lengths
    trials: int


# By value: what decides most comes first.
FULL = Sizes(
    models=(
        Subject("8b", "qwen3-8b", 1024),
        Subject("moe", "qwen3-30b-a3b", 1024),
        Subject("hybrid", "lfm2-2.6b", 1024),
        Subject("32b", "qwen3-32b", 512),
    ),
    prompts=(512, 8192, 32768),
    clients=(1, 8, 32, 128),
    company_prompt=8192,
    lengths=Lengths(100, 128),
    trials=10,
)
TOY = Sizes((Subject("toy", None, 512),), (16, 64), (1, 2), 64, Lengths(16, 16), 2)


@dataclass(frozen=True, slots=True)
class Server:
    """A server to start, and what is asked of it."""

    name: str
    peer: Peer
    options: tuple[str, ...]
    parallel: int
    ctx_size: int
    parts: tuple[Part, ...]


def servers(subject: Subject, sizes: Sizes) -> Iterator[Server]:
    """Ours and llama-server's in turn, each beginning with what matters most."""
    most = max(sizes.clients)
    alone = (*(prompt_part(n, sizes.trials) for n in sizes.prompts), answer_part(sizes.lengths, sizes.trials))
    rates = tuple(rate_part(n, sizes.lengths) for n in sizes.clients)
    company = tuple(company_part(n, sizes.company_prompt, sizes.lengths, sizes.trials) for n in sizes.clients)
    peers: tuple[tuple[Peer, tuple[str, ...]], ...] = ((OURS, ()), (LLAMA_SERVER, ("--slots", "--cache-ram", "0")))
    for peer, own in peers:
        yield Server(f"{peer.name}, alone", peer, own, 1, max(sizes.prompts) + 1024, alone)
    # One client more than there are, and one more prompt.
    several = (most + 1, (most + 1) * subject.slot)
    for cells, option in (("unified", UNIFIED), ("divided", DIVIDED)):
        for peer, own in peers:
            yield Server(f"{peer.name}, {cells}", peer, (*own, *option), *several, rates)
    for peer, own in peers:
        room = several[1] + 2 * sizes.company_prompt
        yield Server(f"{peer.name}, unified, company", peer, (*own, *UNIFIED), most + 1, room, company)
    for name, more in (("not ahead", ("--no-steps-ahead",)), ("no drafts", ("--spec-type", "none")), ("drafts", ())):
        parts = rates if name == "not ahead" else tuple(again_part(n, sizes.lengths) for n in sizes.clients)
        yield Server(f"{OURS.name}, unified, {name}", OURS, (*UNIFIED, *more), *several, parts)


def run(options: Namespace) -> int:
    """Measure until the time is over. Returns 0 if nothing is left, 2 if something is, 1 if a server did not run."""
    sizes = TOY if options.toy else FULL
    # A run that is ended ends its server: it holds the device's memory.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    ledger = Ledger(options.out / "plan.jsonl", options.minutes * 60.0)
    complete = True
    try:
        if options.backend != "none":
            products.provide(options.out, options.backend, options.arch, ledger.seconds_left)
        for subject in sizes.models:
            if not options.models or subject.name in options.models:
                complete &= measure(subject, sizes, ledger, options)
    except TimeOverError as error:
        sys.stdout.write(f"to be continued: {error}\n")
        return 2
    finally:
        (options.out / "plan.md").write_text("\n".join(tables(list(ledger.rows.values()))) + "\n")
    return 0 if complete else 1


def measure(subject: Subject, sizes: Sizes, ledger: Ledger, options: Namespace) -> bool:
    """Return whether every server could be measured."""
    model = subject.path(options.model_dir)
    if not model.exists():
        shape = SHAPES[subject.shape or ""]
        ledger.reserve(f"writing {model.name}", sum(math.prod(one.shape) for one in matrices(shape)) / WRITING)
        write_random_model(model, shape, FORMATS["q4_k"])
    for module in ("graphs", "calls"):
        clients = [str(n) for n in sizes.clients if n <= 32]
        count(f"{subject.name}, {module}", module, [str(model), str(options.gpu_layers), *clients], ledger)
    complete = True
    for server in servers(subject, sizes):
        names = {f"{subject.name}, {server.name}: {part.name}": part for part in server.parts}
        if ledger.lacks(names):
            settings = Settings(
                model=model,
                port=free_port(),
                threads=0 if server.peer is OURS else -1,
                parallel=server.parallel,
                ctx_size=server.ctx_size,
                options=("--gpu-layers", str(options.gpu_layers), *server.options),
            )
            complete &= ask(server, settings, names, ledger, options.out / "servers.log")
    return complete


def count(name: str, module: str, arguments: Sequence[str], ledger: Ledger) -> None:
    """Count in a process of its own, which has the build that is measured."""
    if ledger.wants(name, 2 * LOADING):
        command = [find_own_python(), "-P", "-m", f"bench.gpu.{module}", *arguments]
        # -P, and this folder last: here lies the package's source, too, in which nothing is compiled.
        places = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
        ledger.add(name, counted=[json.loads(row) for row in done.stdout.splitlines()])


def ask(server: Server, settings: Settings, names: dict[str, Part], ledger: Ledger, log: Path) -> bool:
    """Start a server, and make the measurements that are not made yet."""
    first = next(name for name in names if ledger.lacks([name]))
    ledger.wants(first, LOADING + names[first].seconds)
    try:
        with running(server.peer, settings, log) as peer:
            for name, part in names.items():
                if ledger.wants(name, part.seconds):
                    asyncio.run(make(part, peer, name, ledger))
    except (NotAvailableError, RuntimeError, TimeoutError) as error:
        # The others are of use without it. What failed is made again by the next run.
        sys.stdout.write(f"NOT MEASURED: {server.name}: {error}\n")
        return False
    return True


async def make(part: Part, peer: RunningPeer, name: str, ledger: Ledger) -> None:
    asker = Asker(peer, seed=len(ledger.rows))
    await asker.learn_vocabulary()
    await asker.first_token(16, 8)
    ledger.add(name, **await part.measure(asker, peer))


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each set of figures."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        for one in ({"name": row["name"], **counted} for counted in row["counted"]) if "counted" in row else (row,):
            groups.setdefault(tuple(one), []).append(one)
    for columns, found in groups.items():
        yield from head([column.replace("_", " ") for column in columns])
        for row in found:
            yield line(shown(row[column]) for column in columns)
        yield ""


def shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
