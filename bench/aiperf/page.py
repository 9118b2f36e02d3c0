"""The runs of AIPerf's page on request cancellation, and one without any cancellation to compare with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of AIPerf.

    Attributes
    ----------
    rate
        Per cent of the requests whose client hangs up; 0: none.
    delay
        Seconds from "fully sent" until it does.
    prompt, answer
        Tokens of a request, and of its answer: mean and standard deviation.
    warmup
        Requests that come before, and are neither cut nor counted.
    """

    name: str
    title: str
    rate: float
    delay: float
    concurrency: int
    requests: int
    prompt: tuple[int, int]
    answer: tuple[int, int]
    warmup: int = 0


RUNS = {
    run.name: run
    for run in (
        Run(
            name="none",
            title="no cancellation",
            rate=0.0,
            delay=0.0,
            concurrency=8,
            requests=24,
            prompt=(100, 0),
            answer=(40, 0),
        ),
        Run(
            name="10-percent",
            title="10 % after 0.5 s",
            rate=10.0,
            delay=0.5,
            concurrency=8,
            requests=50,
            prompt=(200, 20),
            answer=(60, 6),
            warmup=5,
        ),
        Run(
            name="50-percent",
            title="50 % after 1.0 s",
            rate=50.0,
            delay=1.0,
            concurrency=10,
            requests=40,
            prompt=(300, 0),
            answer=(150, 0),
        ),
        Run(
            name="30-percent",
            title="30 % at once",
            rate=30.0,
            delay=0.0,
            concurrency=15,
            requests=60,
            prompt=(125, 0),
            answer=(25, 0),
        ),
    )
}
