"""The tab's memory while the page is open beside busy clients: what is still used after a garbage collection."""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from tests.browser.chromium import CDPSession, Tab, browsing
from tests.browser.load import under_load
from tests.browser.scenes import View
from tests.clients.model import serving

INTERVAL = 15.0  # seconds
# Tokens: so few that in the first half the page comes to hold as many ended requests as it ever keeps (500).
ANSWER = 40
# Most growth in the second half, of its mean: a leak of one entry for each request is far more.
TOLERANCE = {"heap": 0.05, "nodes": 0.05, "listeners": 0.05}


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    heap: float  # bytes that are reachable
    nodes: float  # of the DOM, detached ones too
    listeners: float


def soak(seconds: float, view: View, url: str | None = None) -> int:
    """Sample for so long; 1 if something grew in the second half. Without a `url`, of a server of its own with load."""
    with ExitStack() as stack:
        browser = stack.enter_context(browsing())
        if url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(serving(folder, "--parallel", "8", "--kv-unified"))
            stack.enter_context(under_load(server, max_tokens=ANSWER, again=True))
            url = server.url
        tab = Tab(browser, url)
        samples = sampled(tab, view, seconds)
        faults = tab.faults
        tab.close()
    return report(samples, faults)


def sampled(tab: Tab, view: View, seconds: float) -> list[Sample]:
    page = tab.open(view)
    session = tab.context.new_cdp_session(page)
    session.send("Performance.enable")
    began = time.monotonic()
    samples: list[Sample] = []
    say(f"{'seconds':>8} {'heap KiB':>9} {'nodes':>7} {'listeners':>9}")
    while (now := time.monotonic() - began) < seconds:
        samples.append(sample(session, now))
        one = samples[-1]
        say(f"{one.seconds:8.0f} {one.heap / 1024:9.0f} {one.nodes:7.0f} {one.listeners:9.0f}")
        page.wait_for_timeout(INTERVAL * 1e3)
    return samples


def sample(session: CDPSession, now: float) -> Sample:
    session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return Sample(now, found["JSHeapUsedSize"], found["Nodes"], found["JSEventListeners"])


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """By the straight line through the second half: what it gains from that half's begin to its end, of its mean."""
    half = np.array([astuple(one) for one in samples[len(samples) // 2 :]])
    times = half[:, 0]
    span = times[-1] - times[0]
    names = ("heap", "nodes", "listeners")
    slopes = np.polyfit(times, half[:, 1:], 1)[0]
    return dict(zip(names, (slopes * span / half[:, 1:].mean(axis=0)).tolist(), strict=True))


def report(samples: Sequence[Sample], faults: Sequence[str]) -> int:
    found = growth(samples)
    for name, gain in found.items():
        verdict = "flat" if gain <= TOLERANCE[name] else "GROWS"
        say(f"{name}: {verdict}, {gain:+.1%} in the second half")
    for fault in faults:
        say(f"FAULT: {fault}")
    return int(bool(faults) or any(gain > TOLERANCE[name] for name, gain in found.items()))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
