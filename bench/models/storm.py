"""Thousands of requests over four models with room for two: every way to leave, in every phase, loads included."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bench.models.leaving import abandoned_loads
from bench.models.serving import CANCELLED, LOADING, UNLOADED, FrontLog, FrontServer, serving
from bench.models.settings import Settings
from bench.scenarios.report import Report
from bench.scenarios.storm.palette import Body, Kind, Palette, generating
from bench.scenarios.storm.stage import Question, Visit
from bench.scenarios.storm.storm import DIVIDED, Setting, Storm
from bench.scenarios.storm.verdict import faults_in_log, shown, tabulate
from bench.scenarios.storm.visits import Client
from bench.scenarios.storm.wire import Reply, Wire, ask, request_bytes

MODELS = ["m1", "m2", "m3", "m4"]
ROOM = 2  # models that may be loaded at once
N_REQUESTS = 5_000
N_REPLICAS, N_REPLICATED = 4, 20_000
N_CTX = 2_048
# The last value of an option counts.
OPTIONS = (
    *DIVIDED,
    "--ctx-size",
    str(8 * N_CTX),
    "--max-queue",
    "500",
    "--models-max",
    str(ROOM),
)
ALLOWED_MIB = 32.0  # by which the front may have grown after the first half
# How many in a hundred visits: 42 are cut. A visit that supersedes makes a request more, which is not.
SHARES: dict[str, int] = {
    "stays": 50,
    "slow": 4,
    "looks": 4,
    "unsent": 2,
    "at_once": 4,
    "later": 7,
    "in_the_prompt": 5,
    "in_the_answer": 6,
    "half": 3,
    "by_id": 6,
    "by_session": 3,
    "superseded": 4,
    "deadline": 2,
}
# The front answers these by itself.
LOOKING = ("/health", "/v1/models", "/v1/requests", "/v1/sessions", "/props", "/metrics")
# Written when a process is stopped while another one asks it something; neither has a fault.


class FrontClient(Client):
    """A client of several models."""

    def _judge_cut(self, visit: Visit, reply: Reply, question: Question | None, code: str, status: int) -> None:
        super()._judge_cut(visit, reply, question, code, status)
        usage = next((one["usage"] for one in reply.payloads if one.get("usage") and "error" in one), None)
        if usage is not None and not usage["prompt_tokens"]:
            visit.expected = (*visit.expected, None)  # it may have waited for its model, which then never had it

    def looks(self) -> list[Visit]:
        """Ask for what computes nothing."""
        path = self._chance.choice(LOOKING)
        visit = Visit(self._stage.fresh_id(), "looks", path, expected=(None,))
        with Wire(self._stage.port) as wire:
            wire.send(request_bytes(path, None, request_id=visit.id))
            if not (reply := wire.read()).complete:
                visit.fault(f"status {reply.status}, whole: {reply.framed}")
        return [visit]


class FrontStorm(Storm):
    """Visits to several models."""

    def _endless_seconds(self, *, known: bool) -> float:
        kind = self._stage.palette.endless[0]
        # Its model is to be loaded, or its load would be measured.
        ask(self._stage.port, kind.path, kind.ask(self._stage.palette.prompts[0]))
        return super()._endless_seconds(known=known)


def of_all_models(chance: random.Random, n_ctx: int) -> Palette:
    """The kinds of request of one model, for each model."""
    one = generating(chance, n_ctx)

    def each(kinds: tuple[Kind, ...]) -> tuple[Kind, ...]:
        return tuple(named(kind, model) for model in MODELS for kind in kinds)

    return replace(one, kinds=each(one.kinds), endless=each(one.endless)[::-1], telling=each(one.telling))


def of_one_model(chance: random.Random, n_ctx: int) -> Palette:
    """The kinds of request of the first model."""
    found = of_all_models(chance, n_ctx)
    first = {
        name: tuple(kind for kind in getattr(found, name) if kind.name.startswith(f"{MODELS[0]}: "))
        for name in ("kinds", "endless", "telling")
    }
    return replace(found, **first)


def named(kind: Kind, model: str) -> Kind:
    def body(prompt: str) -> Body:
        return {"model": model} | kind.body(prompt)

    return replace(kind, name=f"{model}: {kind.name}", body=body)


def model_of(visit: Visit) -> str:
    return visit.what.partition(":")[0]


async def run(settings: Settings) -> Report:
    """5,000 requests over four models with room for two, 40 % of them leaving: one ending each, and no ghost."""
    report = Report("storm over several models")
    n_requests = settings.runs or N_REQUESTS
    async with serving(settings.model, MODELS, *OPTIONS, log=settings.log) as server:
        server.n_ctx = N_CTX
        at_first = server.resident()
        storm = FrontStorm(server, Setting("models", (), of_all_models, 1.0), settings.seed, client=FrontClient)
        n_questions = await storm.learn()
        report.figure("questions that were answered alone", n_questions)
        began = time.monotonic()
        visits = await storm.wave(n_requests // 2, settings.clients, SHARES)
        halfway = server.resident()
        visits += await storm.wave(n_requests - n_requests // 2, settings.clients, SHARES)
        seconds = time.monotonic() - began
        n_left = sum(visit.way not in ("stays", "slow", "looks", "supersedes") for visit in visits)
        report.figure("requests", f"{len(visits):,} in {seconds:.0f} s, {n_left / len(visits):.0%} of them cut")
        await judge_end(report, server)
        judge(report, visits, server.log)
        await abandoned_loads(report, server, settings)
        report.figure("loads cancelled", server.log.count(CANCELLED))
        report.figure("unloaded", server.log.count(UNLOADED))
        await judge_memory(report, server, at_first, halfway)
    report.check("SIGTERM ended the server in time", server.process.returncode is not None)
    return report


async def replicas(settings: Settings) -> Report:
    """20,000 requests over four replicas of one model, 40 % of them leaving: one ending each, and no ghost."""
    report = Report("storm over replicas")
    options = (*OPTIONS, "--replicas", str(N_REPLICAS))
    async with serving(settings.model, MODELS[:1], *options, log=settings.log) as server:
        server.n_ctx = N_CTX
        await server.load(MODELS[0])
        storm = FrontStorm(server, Setting("models", (), of_one_model, 1.0), settings.seed, client=FrontClient)
        await storm.learn()
        began = time.monotonic()
        visits = await storm.wave(settings.runs or N_REPLICATED, settings.clients, SHARES)
        report.figure("requests", f"{len(visits):,} in {time.monotonic() - began:.0f} s")
        await judge_end(report, server)
        judge(report, visits, server.log)
        places = Counter(
            line.text.partition("]")[0] for visit in visits for line in server.log.by_request.get(visit.id, [])[:1]
        )
        report.table(("replica", "requests"), sorted(places.items()))
    return report


async def judge_end(report: Report, server: FrontServer) -> None:
    """Nothing is left of the storm: no request that waits or computes, and no model that loads for nobody."""
    with suppress(TimeoutError):
        await server.until_idle()
    await server.until_settled()
    live = [one for one in await listed(server) if one["finish_reason"] is None and one["cancel_reason"] is None]
    models = await server.models()
    busy = {name: one["status"] for name, one in models.items() if one["status"]["value"] == "loading"}
    counts = {name: (one["waiting"], one["running"]) for name, one in models.items() if one["waiting"] + one["running"]}
    report.check("no request is left: none waits, none computes", not live and not counts, f"{live[:3]} {counts}")
    report.check("no model is being loaded for nobody", not busy, busy)


async def listed(server: FrontServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await server.client.fetch_json("GET", "/v1/requests"))["data"]
    return found


def judge(report: Report, visits: Sequence[Visit], log: FrontLog) -> None:
    """Add the checks by clients and by the log of all processes."""
    tabulate(report, visits, log, "way")
    tabulate_states(report, visits, log)
    faults = [fault for visit in visits for fault in visit.faults]
    report.check("every client got the whole, right answer, or one error", not faults, shown(faults))
    told = faults_in_log(visits, log)
    report.check("one ending each, of the right kind; no cancel lost, none astray", not told, shown(told))
    strays = [visit.id for visit in visits if not is_where_it_should(visit, log)]
    report.check("each request was computed by the model that it names, if by any", not strays, strays[:4])
    complaints = list(log.complaints())
    report.check("no warning, error or traceback in the log", not complaints, shown(complaints))
    loads = sorted(log.load_seconds)
    median = loads[len(loads) // 2] if loads else 0.0
    report.figure("loads", f"{log.count(LOADING)} begun, {len(loads)} completed in {median:.1f} s (median)")


def is_where_it_should(visit: Visit, log: FrontLog) -> bool:
    lines = log.by_request.get(visit.id, [])
    return all(line.text.startswith((f"[{model_of(visit)}] ", f"[{model_of(visit)}:")) for line in lines)


def tabulate_states(report: Report, visits: Sequence[Visit], log: FrontLog) -> None:
    """The states of the models of the requests that were cut before a model had them, and the phases of the others."""
    phases: Counter[str] = Counter()
    for visit in visits:
        if visit.stays or visit.refused or visit.way == "looks":
            continue
        lines = [line for line in log.by_request.get(visit.id, []) if line.verb == "cancelled"]
        if lines:
            phases[lines[0].phase or "?"] += 1
        elif visit.id not in log.by_request:
            phases[f"model {log.state(model_of(visit), visit.cut_at or visit.sent_at)}"] += 1
    report.table(("cut while", "requests"), sorted(phases.items(), key=lambda one: -one[1]))


async def judge_memory(
    report: Report, server: FrontServer, at_first: dict[str, float], halfway: dict[str, float]
) -> None:
    """The memory is back when all models are unloaded: their processes have ended, and the front has not grown."""
    loaded = server.resident()
    await server.unload_all()
    while server.processes():  # noqa: ASYNC110 - other processes have no event
        await asyncio.sleep(0.02)
    after = server.resident()
    held = (at_first, halfway, loaded, after)
    rows = [
        ("front", *(f"{one['front']:.0f}" for one in held)),
        ("all", *(f"{sum(one.values()):.0f}" for one in held)),
    ]
    report.table(("MiB", "at first", "halfway", "before the unload", "after it"), rows)
    report.check("every model's process has ended", list(after) == ["front"], after)
    grown = after["front"] - halfway["front"]
    report.check(f"the front has grown by less than {ALLOWED_MIB:g} MiB", grown < ALLOWED_MIB, f"{grown:.1f}")
