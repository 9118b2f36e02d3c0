"""TabbyAPI's case: an editor sends a completion at each key from one address, and only the newest may live."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from bench.scenarios.harness import Bench, Server
from bench.scenarios.report import Report
from pyllmcancel.sse import EventDecoder

N_REQUESTS = 10
SECONDS_BETWEEN = 0.2
ANSWER = 800  # tokens: alive when the next key comes


async def run(bench: Bench) -> Report:
    """Ten ``curl -N`` from one address, never waiting for an answer; again with three choices each."""
    report = Report("tabby")
    rows: list[tuple[Any, ...]] = []
    async with bench.server("--supersede", "client-ip") as server:
        for n in (1, 3):
            rows += await type_away(bench, server, report, n)
    report.table(("n", "request", "live after arrival", "ended as", "client saw"), rows)
    return report


async def type_away(bench: Bench, server: Server, report: Report, n: int) -> list[tuple[Any, ...]]:
    chance = random.Random(bench.seed + n)
    prompt = server.prompt(chance, 24)
    ids = [f"key-{n}-{i}" for i in range(N_REQUESTS)]
    curls, live = [], []
    for request_id in ids:
        prompt += server.prompt(chance, 1)
        curls.append(await start_curl(server, prompt, n, request_id))
        await server.log.wait_for(request_id, "added")
        live.append(await server.count("waiting", "running"))
        await asyncio.sleep(SECONDS_BETWEEN)
    outputs = [(await curl.communicate())[0].decode() for curl in curls]
    await server.until_idle()
    judge(report, server, ids, live, outputs)
    endings = [server.log.endings(request_id)[0] for request_id in ids]
    seen = ["[DONE]" if "[DONE]" in output else error_code(output) for output in outputs]
    return [(n, *row) for row in zip(ids, live, [line.reason for line in endings], seen, strict=True)]


def judge(report: Report, server: Server, ids: list[str], live: list[int], outputs: list[str]) -> None:
    endings = [server.log.endings(request_id) for request_id in ids]
    reasons = [lines[0].reason for lines in endings]
    loads = server.log.loads(ids)
    name = ids[0].rpartition("-")[0]
    report.check(f"{name}: at most 1 lives after each arrival (HTTP)", max(live) <= 1, live)
    report.check(f"{name}: the same in each of {len(loads)} log lines", max(loads) <= 1, loads)
    report.check(f"{name}: nine end as superseded", reasons[:-1] == ["superseded"] * (len(ids) - 1), reasons)
    report.check(f"{name}: the tenth completes", endings[-1][0].verb == "finished" and "[DONE]" in outputs[-1])
    told = [error_code(output) == "superseded" and "[DONE]" not in output for output in outputs[:-1]]
    report.check(f"{name}: the nine clients get an error that cannot look like an end", all(told), outputs[:1])
    counts = [len(lines) for lines in endings]
    report.check(f"{name}: ten clean-ups logged, one each", counts == [1] * len(ids), counts)
    report.check_log(server.log)


async def start_curl(server: Server, prompt: list[int], n: int, request_id: str) -> asyncio.subprocess.Process:
    body = {"prompt": prompt, "n": n, "max_tokens": ANSWER, "stream": True, "temperature": 0.0, "ignore_eos": True}
    headers = ("-H", "Content-Type: application/json", "-H", f"X-Request-Id: {request_id}")
    command = ("curl", "-N", "-s", *headers, "-d", json.dumps(body), f"{server.url}/v1/completions")
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


def error_code(output: str) -> str | None:
    """The code of the error event in a stream, if there is one."""
    errors = [event.data for event in EventDecoder().feed(output.encode()) if event.data.startswith('{"error"')]
    return str(json.loads(errors[0])["error"]["code"]) if errors else None
