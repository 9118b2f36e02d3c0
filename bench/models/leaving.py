"""The time from the last client's leaving to the end of the load that nobody waits for any more."""

from __future__ import annotations

import asyncio
import os
import random
import select
import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.models.serving import FrontServer
from bench.models.settings import Settings
from bench.scenarios.report import Report
from bench.scenarios.storm.visits import cancel_path
from bench.scenarios.storm.wire import Wire, ask, request_bytes
from pyllmcancel.bench.percentiles import percentile

N_LOADS = 60
MOST_CLIENTS = 3
LONGEST = 2.0  # seconds from the beginning of a load until its last client leaves
PATIENCE = 30.0  # seconds for the end of a process
ASKED_MS = 100.0  # by the issue
WAYS = ("FIN", "RST", "by id", "by session", "superseded")


async def abandoned_loads(report: Report, server: FrontServer, settings: Settings) -> None:
    """Leave loads, in every way, at any moment of them; the load has ended when its process has."""
    chance = random.Random(settings.seed)
    port = int(server.url.rpartition(":")[2])
    models = list(await server.models())
    n_loads = N_LOADS if settings.runs is None else max(len(WAYS), settings.runs * N_LOADS // 5_000)
    seconds: list[float] = []
    lost = []
    for number in range(n_loads):
        await server.unload_all()
        way, model = WAYS[number % len(WAYS)], chance.choice(models)
        took = await asyncio.to_thread(Load(server, port, model, chance, number).left, way)
        if took is None:
            lost.append(f"{model}, {way}")
        else:
            seconds.append(took * 1e3)
    report.check("every load that nobody waits for ends", not lost, lost[:4])
    if seconds:
        p50, p99 = (percentile(seconds, share) or 0.0 for share in (50, 99))
        told = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(seconds):.1f} ms, of {len(seconds)}"
        report.figure("from the last leaver to the end of the load", told)
        report.check(f"within {ASKED_MS:g} ms", p99 <= ASKED_MS, f"{p99:.1f} ms")


class Load:
    """One load, and the clients that wait for it."""

    def __init__(self, server: FrontServer, port: int, model: str, chance: random.Random, number: int) -> None:
        self._server = server
        self._port = port
        self._model = model
        self._chance = chance
        self._session = f"load {number}"
        self._ids = [f"load-{number}-{i}" for i in range(chance.randrange(1, MOST_CLIENTS + 1))]

    def left(self, way: str) -> float | None:
        """Have the model loaded, and leave; the seconds until its process has ended, None if it does not."""
        with ExitStack() as stack:
            wires = {one: self._send(stack, one, one if way == "superseded" else None) for one in self._ids}
            descriptor = os.pidfd_open(process_of(self._server, self._model))
            stack.callback(os.close, descriptor)
            self._until_waiting(set(wires))
            time.sleep(self._chance.uniform(0.0, LONGEST))
            if way == "superseded":
                wires = {f"{one}-newer": self._send(stack, f"{one}-newer", one) for one in self._ids}
                self._until_waiting(set(wires))
            *others, last = wires.items()
            for request_id, wire in others:
                leave(self._port, wire, request_id, "FIN" if way == "by session" else way)
            began = time.monotonic()
            if way == "by session":
                ask(self._port, cancel_path(self._session), {})
            else:
                leave(self._port, last[1], last[0], way)
            readable, _, _ = select.select([descriptor], [], [], PATIENCE)
            return time.monotonic() - began if readable else None

    def _send(self, stack: ExitStack, request_id: str, key: str | None) -> Wire:
        wire = stack.enter_context(Wire(self._port))
        body = {"model": self._model, "prompt": "x", "max_tokens": 4, "session_id": self._session}
        body |= {} if key is None else {"supersede": key}
        wire.send(request_bytes("/v1/completions", body, request_id=request_id))
        return wire

    def _until_waiting(self, ids: set[str]) -> None:
        until(lambda: waiting_ids(self._port, self._model) == ids)


def leave(port: int, wire: Wire, request_id: str, way: str) -> None:
    if way == "by id":
        ask(port, f"/v1/requests/{request_id}/cancel", {})
    else:
        wire.leave(reset=way == "RST")


def process_of(server: FrontServer, model: str) -> int:
    found: dict[str, int] = {}

    def is_there() -> bool:
        found.update(server.processes())
        return model in found

    until(is_there)
    return found[model]


def waiting_ids(port: int, model: str) -> set[str]:
    listed = ask(port, "/v1/requests?status=waiting").payloads[0]["data"]
    return {one["id"] for one in listed if one["model"] == model and one["phase"] == "loading"}


def until(accept: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not accept():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.002)
