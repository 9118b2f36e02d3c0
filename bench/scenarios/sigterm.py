"""SIGTERM with requests in flight: each gets its proper ending, and the process is gone in time."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from typing import Any

from bench.scenarios.harness import Bench, Server, completion
from bench.scenarios.http_client import Answer
from bench.scenarios.report import Report

DRAIN = 2.0
GRACE = 1.0
SHORT, LONG = DRAIN / 4, DRAIN * 2


async def run(bench: Bench) -> Report:
    """SIGTERM with a streaming and a non-streaming request in flight: both end properly, within the drain plus 1 s."""
    report = Report("sigterm")
    rows: list[tuple[Any, ...]] = []
    for seconds in (LONG, SHORT):
        async with bench.server("--drain", str(DRAIN)) as server:
            answers, gone_after = await terminate_in_flight(bench, server, seconds)
            (judge_cut if seconds > DRAIN else judge_whole)(report, answers, gone_after)
            # Ended by the signal, as uvicorn has it once it has shut down in order, or with success.
            status = server.process.returncode
            report.check(f"{seconds} s: an orderly exit", status in (0, -signal.SIGTERM), status)
            report.check_log(server.log)
        for kind, answer in answers.items():
            end = answer.error_code or "complete"
            rows.append((f"{seconds} s", kind, answer.status, end, answer.done, f"{gone_after:.2f} s"))
    report.table(("answers last", "request", "status", "ended as", "[DONE]", "process gone after"), rows)
    return report


async def terminate_in_flight(bench: Bench, server: Server, seconds: float) -> tuple[dict[str, Answer], float]:
    """Answers by kind, and the seconds from the signal until the process is gone."""
    chance = random.Random(bench.seed)
    pace = await server.pace(chance)
    # Two decode side by side, at up to twice the time a token.
    n_tokens = server.answer_lasting(seconds, pace, 32)
    calls = {
        kind: await server.complete(completion(server.prompt(chance, 32), n_tokens, stream=stream), request_id=kind)
        for kind, stream in (("streaming", True), ("whole", False))
    }
    await calls["streaming"].wait_for_events(4)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(server.process.wait, 60)
    gone_after = time.monotonic() - began
    return {kind: await call.answer for kind, call in calls.items()}, gone_after


def judge_cut(report: Report, answers: dict[str, Answer], gone_after: float) -> None:
    streaming, whole = answers["streaming"], answers["whole"]
    cut = streaming.error_code == "shutdown" and not streaming.done and streaming.ended_at is not None
    report.check("cut stream: one error event, no [DONE], closed", cut, streaming.error)
    report.check("cut stream: partial usage beside the error", bool(streaming.usage))
    told = whole.status == 503 and whole.error_code == "shutdown" and "retry-after" in whole.headers
    report.check("cut answer: 503 with Retry-After", told, (whole.status, whole.headers))
    report.check("cut answer: partial usage beside the error", bool(whole.usage))
    report.check(f"cut: gone within {DRAIN + GRACE:.0f} s", gone_after <= DRAIN + GRACE, gone_after)
    report.check("cut: not before the drain is over", gone_after >= DRAIN, gone_after)


def judge_whole(report: Report, answers: dict[str, Answer], gone_after: float) -> None:
    complete = all(answer.complete for answer in answers.values())
    report.check("within the drain: both complete", complete, [answer.error_code for answer in answers.values()])
    report.check("within the drain: gone before it is over", gone_after <= DRAIN + GRACE / 2, gone_after)
