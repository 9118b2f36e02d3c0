"""Two fronts behind HAProxy, by the recipe of ``deploy/``: a storm, and one front is killed in the middle."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.peers import OURS
from bench.peers import Settings as PeerSettings
from bench.peers.running import RunningPeer, free_port, running
from bench.scenarios.report import Report
from bench.scenarios.server_log import ServerLog
from bench.scenarios.storm.wire import Answer, Reply, Wire, ask, request_bytes
from tests.support.proxies import HAProxy

if TYPE_CHECKING:
    from bench.models.settings import Settings

N_REQUESTS = 2_000
N_KEYS, N_PROMPTS, N_TOKENS = 48, 24, 96
OPTIONS = ("--replicas", "2", "--max-queue", "500", "--spec-type", "none")
PATH = "/v1/completions"
SOON = 1.0  # seconds in which the processes of a killed front are at rest, by the issue
PATIENCE = 60.0
CUTS = ("FIN", "RST", "by id")


@dataclass(slots=True)
class Visit:
    """One client's request, and its observations; the times are on the monotonic clock."""

    id: str
    key: str | None
    prompt: str
    cut: str | None
    sent_at: float = 0.0
    ended_at: float = 0.0
    reply: Reply = field(default_factory=Reply)

    @property
    def outcome(self) -> str:
        if self.cut in ("FIN", "RST"):
            return "left"
        if self.reply.complete:
            return "complete"
        return "broken" if self.reply.error is None else str(self.reply.error.get("code"))

    def may_yield_to(self, other: Visit) -> bool:
        """Return whether both are of one key, and lived at the same time."""
        lived = max(self.sent_at, other.sent_at) < min(self.ended_at, other.ended_at)
        return lived and other is not self and other.key == self.key


class Clients:
    """Makes visits through the balancer, each in a thread."""

    def __init__(self, port: int, n_visits: int, seed: int) -> None:
        self._port = port
        self._n = n_visits
        self._seed = seed
        self.halfway = threading.Event()  # set when half of the visits have begun

    def visit(self, number: int) -> Visit:
        chance = random.Random(f"{self._seed} {number}")
        key = f"key {chance.randrange(N_KEYS)}" if chance.random() < 0.6 else None
        cut = chance.choice(CUTS) if chance.random() < 0.4 else None
        visit = Visit(f"fronts-{number}", key, chance.choice(prompts()), cut)
        body = body_of(visit.prompt) | {"stream": chance.random() < 0.75}
        if number == self._n // 2:
            self.halfway.set()
        with Wire(self._port) as wire:
            visit.sent_at = time.monotonic()
            wire.send(request_bytes(PATH, body, request_id=visit.id, session=key))
            if visit.outcome == "left":
                wire.answered(chance.uniform(0.0, 0.3))
                wire.leave(reset=cut == "RST")
            elif cut is None:
                visit.reply = wire.read()
            else:
                wire.answered(chance.uniform(0.0, 0.3))
                ask(self._port, f"/v1/requests/{visit.id}/cancel?hold=5", {}, session=key)
                visit.reply = wire.read()
        visit.ended_at = time.monotonic()
        return visit


def prompts() -> list[str]:
    return [f"def f{i}(" for i in range(N_PROMPTS)]


def body_of(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": N_TOKENS, "ignore_eos": True, "temperature": 0.0}


async def run(settings: Settings) -> Report:
    """Two fronts behind HAProxy: 2,000 requests, 40 % of them cut, keys, and one front killed in the middle."""
    report = Report("two fronts behind HAProxy")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        logs = [ServerLog(), ServerLog()]
        killed, other = (stack.enter_context(front(settings, folder / str(i), log)) for i, log in enumerate(logs))
        balancer = stack.enter_context(HAProxy(killed.settings.port, folder, second=other.settings.port))
        known = {one: Answer.of(ask(other.settings.port, PATH, body_of(one))) for one in prompts()}
        clients = Clients(balancer.port, settings.runs or N_REQUESTS, settings.seed)
        watch = stack.enter_context(KeyWatch(other.settings.port))
        began = time.monotonic()
        with ThreadPoolExecutor(settings.clients) as pool:
            visiting = [pool.submit(clients.visit, number) for number in range(settings.runs or N_REQUESTS)]
            clients.halfway.wait()
            killed_at, rest_seconds = kill(killed)
            visits = [one.result() for one in visiting]
        report.figure("requests", f"{len(visits):,} in {time.monotonic() - began:.0f} s")
        report.check(f"the processes of the killed front are at rest within {SOON:g} s", rest_seconds < SOON)
        report.figure("seconds from the kill to the end of its last process", f"{rest_seconds:.3f}")
        judge_clients(report, visits, known, killed_at, killed_at + rest_seconds)
        judge_other(report, other.settings.port, logs[1], watch)
    return report


def front(settings: Settings, folder: Path, log: ServerLog) -> AbstractContextManager[RunningPeer]:
    """Start a front with two replicas of the model."""
    folder.mkdir()
    options = (*OPTIONS, "--store", str(folder / "responses.db"))
    peer = PeerSettings(model=settings.model, port=free_port(), threads=1, parallel=4, ctx_size=8_192, options=options)
    return running(OURS, peer, settings.log, log.take)


def kill(front: RunningPeer) -> tuple[float, float]:
    """Kill the front; return when, and the seconds until it, its workers and their helpers had all ended."""
    with ExitStack() as stack:
        descriptors = set()
        for pid in (front.pid, *descendants(front.pid)):
            descriptors.add(descriptor := os.pidfd_open(pid))
            stack.callback(os.close, descriptor)
        killed_at = time.monotonic()
        os.kill(front.pid, signal.SIGKILL)
        while descriptors and time.monotonic() < killed_at + PATIENCE:
            ended, _, _ = select.select(descriptors, [], [], PATIENCE)
            descriptors -= set(ended)
        return killed_at, time.monotonic() - killed_at


def descendants(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, file.read_text().split()):
                yield child
                yield from descendants(child)


class KeyWatch:
    """Looks again and again which requests of a front live, and notes keys that have two which are not cancelled."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.double: set[str] = set()

    def _look(self) -> None:
        while not self._ends.wait(0.1):
            live = Counter(one["supersede"] for one in entries(self._port, "/v1/requests") if is_live(one))
            self.double |= {key for key, count in live.items() if key is not None and count > 1}

    def __enter__(self) -> KeyWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def until_none(find: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + PATIENCE
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def entries(port: int, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(port, path).payloads[0]["data"]
    return found


def is_live(entry: dict[str, Any]) -> bool:
    """Return whether a request holds its key: accepted, and not cancelled."""
    is_over = entry["finish_reason"] or entry["cancel_reason"]
    return not is_over and entry["phase"] != "preparing"


def judge_clients(
    report: Report, visits: Sequence[Visit], known: dict[str, Answer], killed_at: float, gone_at: float
) -> None:
    outcomes = Counter(visit.outcome for visit in visits)
    report.table(("outcome", "requests"), outcomes.most_common())
    wrong = [one.id for one in visits if one.reply.complete and not Answer.of(one.reply).same(known[one.prompt])]
    report.check("every answer that looks complete is the one that was given alone", not wrong, wrong[:4])
    broken = [one for one in visits if one.outcome == "broken"]
    strays = [one.id for one in broken if not (one.sent_at < gone_at and one.ended_at > killed_at)]
    report.check("some answers of the killed front broke off, and no others", bool(broken) and not strays, strays[:4])
    longest = max((one.ended_at - killed_at for one in broken), default=0.0)
    report.figure("seconds from the kill to the last broken answer's end", f"{longest:.3f}")
    later = [one.ended_at - one.sent_at for one in visits if one.sent_at > gone_at]
    report.figure("requests after the kill, and the longest of them", f"{len(later)}, {max(later, default=0.0):.1f} s")
    allowed = {None: {"superseded"}, "by id": {"superseded", "explicit"}}
    odd = [
        f"{one.id}: {one.outcome}, {one.reply.status}"
        for one in visits
        if one.outcome not in {"left", "complete", "broken"} | allowed.get(one.cut, set())
    ]
    report.check("all others are complete, or say why they are not", not odd, f"{len(odd)}: {odd[:4]}")
    lost = [one.id for one in visits if one.outcome == "superseded" and not any(map(one.may_yield_to, visits))]
    report.check("no request is superseded but by another one of its key", not lost, lost[:4])


def judge_other(report: Report, port: int, log: ServerLog, watch: KeyWatch) -> None:
    live = until_none(lambda: [one["id"] for one in entries(port, "/v1/requests") if one["finish_reason"] is None])
    report.check("the other front has no request left", not live, live[:4])
    busy = until_none(lambda: [one["id"] for one in entries(port, "/v1/models") if one["waiting"] + one["running"]])
    report.check("its workers compute for nobody", not busy, busy)
    wrong = [one for one in log.by_request if len(log.endings(one)) != 1]
    report.check("each of its requests ended once", not wrong, wrong[:4])
    report.check(
        "at no time had a key two requests that were not cancelled", not watch.double, sorted(watch.double)[:4]
    )
    report.check("no warning, error or traceback in its log", not log.complaints(), log.complaints()[:3])
