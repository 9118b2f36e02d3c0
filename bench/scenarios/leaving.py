"""Clients that hang up: those that wait behind a stream, and an editor that closes its last request at each key."""

from __future__ import annotations

import asyncio
import random

from bench.scenarios.harness import Bench, Server
from bench.scenarios.report import Report
from pyllmcancel.bench.client import Call
from pyllmcancel.bench.exchange import Ask

N_QUEUED, QUEUED_PROMPT = 8, 500
STREAMED = 1500  # tokens: the stream lasts until all have left
N_KEYS, SECONDS_BETWEEN = 10, 0.3
UNLIMITED = {"max_tokens": None}


async def run_queued(bench: Bench) -> Report:
    """A stream runs, queued clients leave: nothing is computed for them, and the stream does not change."""
    report, chance = Report("queued-clients-leave"), random.Random(bench.seed)
    # Without drafts: with them the second stream would have the first one's tokens at once.
    async with bench.server("--parallel", "1", "--spec-type", "none") as server:
        prompt = server.prompt(chance, 24)
        alone = await server.start(prompt, STREAMED, "alone").ended()
        stream = server.start(prompt, STREAMED, "foreground")
        await stream.first_token()
        calls = [server.start(server.prompt(chance, QUEUED_PROMPT), 8, f"queued-{i}") for i in range(N_QUEUED)]
        rows = await hang_up(server, calls)
        report.check("the stream still runs when all have left", not stream.is_over)
        answer = await stream.ended()
        after = await server.start(server.prompt(chance, 24), 1, "next").ended()
        report.figure("the next request's first token", f"{after.ttft or float('nan'):.3f} s")
        report.check("the stream's text is the one that it has alone", answer.text_sha256 == alone.text_sha256)
        report.check("the next request is answered", after.ttft is not None, after.error)
    report.check(
        "all end as disconnect while they wait", {row[1:3] for row in rows} == {("disconnect", "waiting")}, rows
    )
    report.check("nothing is computed for them", not any(done for *_, done in rows), rows)
    return tabulated(report, server, rows)


async def run_keys(bench: Bench) -> Report:
    """A streamed completion without max_tokens every 0.3 s; its client closes the last one before the next."""
    report, chance = Report("editor-closes"), random.Random(bench.seed)
    rows, live = [], []
    async with bench.server() as server:
        prompt = server.prompt(chance, 24)
        for number in range(N_KEYS):
            prompt += server.prompt(chance, 1)
            call = server.client.start(Ask(prompt=prompt, max_tokens=0, request_id=f"key-{number}", fields=UNLIMITED))
            await server.log.wait_for(f"key-{number}", "added")
            live.append(await server.count("waiting", "running"))
            await asyncio.sleep(SECONDS_BETWEEN)
            rows += await hang_up(server, [call])
        await server.until_idle()
    report.check("at most 1 lives after each arrival", max(live) <= 1, live)
    report.check("all end as disconnect", {row[1] for row in rows} == {"disconnect"}, rows)
    return tabulated(report, server, rows)


async def hang_up(server: Server, calls: list[Call]) -> list[tuple[str, str | None, str | None, int]]:
    """Cut the calls once the server has them; return id, reason, phase and computed tokens of each."""
    rows = []
    for call in calls:
        await server.log.wait_for(call.exchange.ask.request_id, "added")
    for call in calls:
        call.cut()
    for call in calls:
        request_id = call.exchange.ask.request_id
        line = await server.log.ending(request_id)
        rows.append((request_id, line.reason, line.phase, (await server.request(request_id))["prompt_tokens_done"]))
    return rows


def tabulated(report: Report, server: Server, rows: list[tuple[str, str | None, str | None, int]]) -> Report:
    report.table(("request", "ended as", "in", "prompt tokens computed"), rows)
    report.check("one ending each", all(len(server.log.endings(row[0])) == 1 for row in rows))
    report.check_log(server.log)
    return report
