"""Processes of one model are killed, or stopped, under load: every answer goes on elsewhere, as if nothing happened.

Half of the four processes end at once. The next ones wait until no live answer has been moved before: what takes two
processes along is not tried a third time. A server is started anew when each process has ended twice, since one that
ends three times within a minute has failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.models.serving import FrontServer, serving
from bench.scenarios.report import Report
from bench.scenarios.storm.palette import SCHEMA, Body
from bench.scenarios.storm.wire import Reply, Wire, ask, request_bytes
from pyllmcancel.bench.percentiles import percentile

if TYPE_CHECKING:
    from bench.models.settings import Settings

KILLS = 40
REPLICAS = 4
N_CLIENTS = 6
N_TOKENS = 48
STOPPED = 30.0  # seconds; a stopped process counts as silent much earlier
N_STOPS = 10  # of a hundred kills, how many stop a process instead
N_CANCELS = 2  # of the requests that move, one in two is cancelled meanwhile
N_AT_ONCE = REPLICAS // 2
KILLS_OF_A_PROCESS = 2
OPTIONS = ("--replicas", str(REPLICAS), "--parallel", "2", "--ctx-size", "4096", "--log-level", "warning")
MODEL = "m1"
# These fields are of one request, or of the moment; a moved answer's prompt may be in a cache, or not.
VOLATILE = {"id", "created", "created_at", "completed_at", "timings", "prompt_tokens_details", "input_tokens_details"}
VOLATILE |= {
    "input_tokens",
    "tokens_evaluated",
    "seed",
    "item_id",
    "call_id",
    "cache_read_input_tokens",
    "tokens_cached",
    "system_fingerprint",
    "id_slot",
}
TOOL: Body = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    path: str
    body: Body


def questions() -> list[Question]:
    """Half of them sampled at temperature 1 with a seed, a quarter with a schema or tools, in all dialects."""
    found = []
    for number in range(6):
        chat = [{"role": "user", "content": f"Tell me {number + 2} things about lions."}]
        prompt = f"def f{number}("
        warm: Body = {"temperature": 1.0, "seed": number}
        cold: Body = {"temperature": 0.0}
        how = (cold, warm)[number % 2]
        strict = {"type": "json_schema", "json_schema": {"name": "note", "schema": SCHEMA, "strict": True}}
        long: Body = {"max_tokens": N_TOKENS, "ignore_eos": True}
        for stream in (True, False):
            both = {"stream": stream}
            found += [
                Question("completion", "/v1/completions", {"prompt": prompt, "logprobs": 2} | how | long | both),
                Question("two choices", "/v1/completions", {"prompt": prompt, "n": 2} | warm | long | both),
                Question(
                    "llama", "/completion", {"prompt": prompt, "n_predict": N_TOKENS, "ignore_eos": True} | how | both
                ),
                Question("chat", "/v1/chat/completions", {"messages": chat} | how | long | both),
                Question("schema", "/v1/chat/completions", {"messages": chat, "response_format": strict} | warm | both),
                Question(
                    "tools",
                    "/v1/chat/completions",
                    {"messages": chat, "tools": [TOOL], "tool_choice": "required"} | how | both,
                ),
                Question("messages", "/v1/messages", {"messages": chat, "max_tokens": N_TOKENS} | cold | both),
                Question(
                    "responses",
                    "/v1/responses",
                    {"input": prompt, "max_output_tokens": N_TOKENS, "store": False} | cold | both,
                ),
            ]
    return found


@dataclass(slots=True)
class Asked:
    """One request in a thread of its own, and what came of it."""

    question: Question
    id: str
    begun: threading.Event = field(default_factory=threading.Event)
    reply: Reply = field(default_factory=Reply)
    times: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    cancelled: str | None = None

    def run(self, port: int) -> None:
        try:
            with Wire(port) as wire:
                wire.send(request_bytes(self.question.path, self.question.body, request_id=self.id))
                self.reply = wire.read(1, self.begun.set)
        finally:
            self.begun.set()
            self.ended.set()

    @property
    def code(self) -> str | None:
        error = self.reply.error
        if error is None:  # a stream of /v1/responses ends with an event of its own
            status = self.reply.payloads[-1].get("response", {}).get("status") if self.reply.payloads else None
            return None if status in (None, "completed") else str(status)
        return str(error.get("code") or error.get("type"))


def essence(reply: Reply) -> str:
    """Return the part of an answer that must not differ. Events of several choices are in the order of these."""
    payloads = reply.payloads
    if any("choices" in one for one in payloads):
        payloads = sorted(payloads, key=lambda one: [choice["index"] for choice in one["choices"]] or [99])
    return json.dumps([reply.status, reply.done, stable(payloads)])


def first_difference(one: str, other: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"{one[max(0, at - 60) : at + 30]!r} for {other[at : at + 30]!r}"


def stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: stable(part) for name, part in value.items() if name not in VOLATILE}
    return [stable(part) for part in value] if isinstance(value, list) else value


@dataclass(slots=True)
class Found:
    """The findings."""

    alone: dict[int, str] = field(default_factory=dict)  # by question
    n_answers: int = 0
    n_moved: int = 0
    n_kills: int = 0
    n_stops: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    not_cancelled: list[str] = field(default_factory=list)
    n_cancelled: int = 0
    ghosts: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)  # seconds from a kill to the next ending or event


async def run(settings: Settings) -> Report:
    """Replicas are killed under load; no answer differs from the one of an undisturbed server."""
    report = Report("answers move")
    found, asked = Found(), questions()
    n_kills = settings.runs or KILLS
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4 * N_CLIENTS))
    while found.n_kills < n_kills:
        async with serving(settings.model, [MODEL], *OPTIONS, log=settings.log) as server:
            port = int(server.url.rpartition(":")[2])
            await server.load(MODEL)
            if not found.alone:
                for number, one in enumerate(asked):
                    found.alone[number] = essence(await asyncio.to_thread(ask, port, one.path, one.body))
            await Killing(server, port, asked, found, random.Random(settings.seed + found.n_kills)).run(n_kills)
    tell(report, found)
    return report


class Killing:
    """Kills the processes of one server, one after the other."""

    def __init__(
        self, server: FrontServer, port: int, asked: list[Question], found: Found, chance: random.Random
    ) -> None:
        self._server = server
        self._port = port
        self._asked = asked
        self._found = found
        self._chance = chance
        self._n = 0
        self._n_ends: Counter[str] = Counter()  # of each process

    async def run(self, n_kills: int) -> None:
        """End processes until each has ended as often as it may, or until `n_kills` of all servers have."""
        while self._found.n_kills < n_kills and self._n_ends.total() < KILLS_OF_A_PROCESS * REPLICAS:
            await self._all_serve()
            await self._kill(n_kills - self._found.n_kills)
        await self._server.until_idle()
        listed = (await self._server.client.fetch_json("GET", "/v1/requests"))["data"]
        self._found.ghosts += [
            one["id"] for one in listed if one["finish_reason"] is None and one["cancel_reason"] is None
        ]

    async def _all_serve(self) -> None:
        async with asyncio.timeout(300.0):
            while True:
                (entry,) = (await self._server.models()).values()
                if all(one["status"]["value"] == "loaded" for one in entry["replicas"]):
                    return
                await asyncio.sleep(0.05)

    async def _kill(self, most: int) -> None:
        """Kill some processes while all compute, and wait until every answer has ended."""
        live = [self._ask() for _ in range(N_CLIENTS)]
        tasks = [asyncio.create_task(asyncio.to_thread(one.run, self._port)) for _, one in live]
        await asyncio.sleep(self._chance.uniform(0.02, 0.5))
        places = await self._places()
        busy = {place for place in places.values() if place}
        victims = sorted(place for place in busy if self._n_ends[place] < KILLS_OF_A_PROCESS)
        self._chance.shuffle(victims)
        # A process that stops is alone: until it counts as silent, another one's answers could be moved to it.
        stops = self._chance.random() * 100 < N_STOPS
        chosen = victims[: 1 if stops else min(N_AT_ONCE, most)]
        pids = [self._server.processes()[victim] for victim in chosen]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP if stops else signal.SIGKILL)
        asked = [one for _, one in live]
        work = [self._follow(victim, asked, places) for victim in chosen]
        work += [self._wake(pid) for pid in pids if stops]
        await asyncio.gather(*work)
        await asyncio.gather(*tasks)
        for number, one in live:
            self._judge(number, one)

    async def _follow(self, victim: str, live: list[Asked], places: dict[str, str]) -> None:
        """Follow the answers of a process that has just been killed or stopped, and cancel some of them."""
        killed_at = time.monotonic()
        moved = [one for one in live if places.get(one.id) == victim and not one.ended.is_set()]
        self._found.n_moved += len(moved)
        self._found.n_kills += 1
        self._n_ends[victim] += 1
        for one in moved:
            if self._chance.random() * N_CANCELS < 1.0:
                await asyncio.sleep(self._chance.uniform(0.0, 0.3))
                told = await asyncio.to_thread(ask, self._port, f"/v1/requests/{one.id}/cancel", {})
                one.cancelled = told.payloads[0].get("outcome") if told.payloads else str(told.status)
        for one in moved:
            await asyncio.to_thread(one.ended.wait)
            if one.cancelled is None:
                self._found.pauses.append(time.monotonic() - killed_at)

    async def _wake(self, pid: int) -> None:
        """Let a stopped process run on after some time; the server may have ended it."""
        self._found.n_stops += 1
        await asyncio.sleep(STOPPED)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _ask(self) -> tuple[int, Asked]:
        self._n += 1
        number = self._chance.randrange(len(self._asked))
        return number, Asked(self._asked[number], f"moves-{self._n}-{self._chance.randrange(1 << 32)}")

    async def _places(self) -> dict[str, str]:
        listed = (await self._server.client.fetch_json("GET", "/v1/requests"))["data"]
        return {one["id"]: one.get("replica") or "" for one in listed if one["finish_reason"] is None}

    def _judge(self, number: int, one: Asked) -> None:
        found, name = self._found, f"{one.question.name}, {one.id}"
        if one.cancelled == "cancelled":
            found.n_cancelled += 1
            if one.code not in ("explicit", "cancelled", "incomplete", "499") and one.reply.status != 499:
                found.not_cancelled.append(f"{name}: {one.code} {one.reply.status}")
            return
        found.n_answers += 1
        if one.reply.error is not None or one.reply.status != 200:
            found.errors.append(f"{name}: {one.reply.status} {one.reply.error}")
        elif essence(one.reply) != found.alone[number]:
            found.wrong.append(f"{name}: {first_difference(essence(one.reply), found.alone[number])}")


def tell(report: Report, found: Found) -> None:
    report.figure("kills", f"{found.n_kills}, of them {found.n_stops} stopped for {STOPPED:g} s")
    report.figure("answers", f"{found.n_answers:,}, of them of killed processes {found.n_moved - found.n_cancelled:,}")
    report.check("no answer differs from that of an undisturbed server", not found.wrong, found.wrong[:4])
    report.check("no request gets an error", not found.errors, found.errors[:4])
    report.check("no request is left", not found.ghosts, found.ghosts[:4])
    report.check(
        f"each of {found.n_cancelled} cancels in a move ends its request",
        not found.not_cancelled,
        found.not_cancelled[:4],
    )
    if found.pauses:
        p50, p99 = (percentile(found.pauses, share) or 0.0 for share in (50, 99))
        report.figure("from the kill to the end of a moved answer", f"p50 {p50:.2f} s, p99 {p99:.2f} s")
