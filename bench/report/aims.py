"""The aims, and whether the figures of a run meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bench.aiperf.page import RUNS
from bench.report.results import OURS, REFERENCE, RIVAL, Results
from bench.report.tables import per_cent, seconds, whole
from bench.side_by_side.cancel_latency import KINDS
from bench.side_by_side.throughput import REQUESTS
from pyllmcancel.bench.percentiles import percentile

REMARKS = Path(__file__).with_name("remarks.toml")


class Verdict(StrEnum):
    """How an aim came out."""

    MET = "met"
    MISSED = "**missed**"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, in words, and whether it is good enough; None: nothing was found."""

    text: str
    good: bool | None

    @property
    def verdict(self) -> Verdict:
        if self.good is None:
            return Verdict.UNKNOWN
        return Verdict.MET if self.good else Verdict.MISSED


NOTHING = Finding("", None)


@dataclass(frozen=True, slots=True)
class Aim:
    """Something to be reached; `key` names it in remarks.toml."""

    key: str
    text: str
    judge: Callable[[Results], Finding]


def all_of(findings: Sequence[Finding]) -> Finding:
    """Good if each one is; unknown as soon as one is."""
    known = [finding for finding in findings if finding.good is not None]
    text = "; ".join(finding.text for finding in known)
    if any(not finding.good for finding in known):
        return Finding(text, False)
    return Finding(text, True if known and len(known) == len(findings) else None)


def at_most(limit: float, value: float | None, text: Callable[[float], str]) -> Finding:
    return NOTHING if value is None else Finding(text(value), value <= limit)


def at_least(limit: float, value: float | None, text: Callable[[float], str]) -> Finding:
    return NOTHING if value is None else Finding(text(value), value >= limit)


def cancel_latency(results: Results) -> Finding:
    def judge(name: str) -> Iterator[Finding]:
        values = results.values("cancel-latency", OURS, name, "latency")
        yield at_most(0.015, percentile(values, 50), lambda value: f"{name}: p50 {seconds(value)}")
        yield at_most(0.040, percentile(values, 99), lambda value: f"p99 {seconds(value)} of {len(values)}")

    return all_of([finding for kind in KINDS for finding in judge(kind.name)])


def in_company(results: Results) -> Finding:
    tokens = results.values("cancel-in-company", OURS, "tokens_after")
    steps = results.values("cancel-in-company", OURS, "steps_begun_after")
    return all_of(
        [
            at_most(
                1, max(tokens, default=None), lambda value: f"at most {whole(value)} tokens, {len(tokens)} cancels"
            ),
            at_most(0, max(steps, default=None), lambda value: f"in {whole(value)} steps that began after it"),
        ]
    )


def queued(results: Results) -> Finding:
    values = results.values("queued-hang-up", OURS, "noticed_after")
    theirs = results.median("queued-hang-up", RIVAL, "noticed_after")
    beside = "" if theirs is None else f" ({RIVAL}: {seconds(theirs)})"
    never = sum(results.values("queued-hang-up", OURS, "never_noticed"))
    if never:
        return Finding(f"{whole(never)} were never noticed", False)
    return at_most(0.050, max(values, default=None), lambda value: f"worst of {len(values)}: {seconds(value)}{beside}")


def typing_storm(results: Results) -> Finding:
    return at_most(1.1, results.median("typing-storm", OURS, "ratio"), lambda value: f"{value:.2f} times as long")


def stop_then_next(results: Results) -> Finding:
    ratio = results.ratio("stop-then-next", ("stop_to_first_token",))
    return at_least(50, 1 / ratio if ratio else None, lambda value: f"{value:.0f} times shorter")


def cpu_after_leaving(results: Results) -> Finding:
    used = sum(results.values("cpu-after-leaving", OURS, "cpu_seconds"))
    after = sum(results.values("cpu-after-leaving", OURS, "cpu_after_leaving"))
    return at_most(0.01, after / used if used else None, per_cent)


def no_worse(path: str, *, more: bool) -> Callable[[Results], Finding]:
    """Judge a figure of speed at each number of clients against llama-server's, as ratio of the better to the worse."""

    def judge(results: Results) -> Finding:
        found = []
        for n in REQUESTS:
            ours, theirs = (results.median(f"throughput-{n}", peer, path) for peer in (OURS, RIVAL))
            above, below = (ours, theirs) if more else (theirs, ours)
            # An ITL of zero is possible, where most tokens share an event: theirs is a miss, ours is not judged.
            good = above / below if above is not None and below else None
            found.append(at_least(1.0, good, lambda value: f"{value:.2f}"))
        return joined(found)

    return judge


def near_reference(results: Results) -> Finding:
    ratios = [results.ratio(f"throughput-{n}", ("tokens_per_second",), REFERENCE) for n in REQUESTS]
    return joined([at_least(0.97, ratio, lambda value: f"{value:.2f}") for ratio in ratios])


def joined(findings: Sequence[Finding]) -> Finding:
    """As `all_of`, in a short form: one figure for each number of clients."""
    whole = all_of(findings)
    return Finding(whole.text.replace("; ", ", "), whole.good)


def goodput(results: Results) -> Finding:
    ratio = results.ratio("goodput-50", ("tokens_per_second",))
    return at_least(1.3, ratio, lambda value: f"{value:.2f} times")


def aiperf(results: Results) -> Finding:
    found = []
    for run in RUNS.values():
        errors = results.values(f"aiperf-{run.name}", OURS, "errors")
        theirs = results.values(f"aiperf-{run.name}", RIVAL, "errors")
        beside = f" ({RIVAL}: {whole(sum(theirs))})" if theirs else ""
        text = f"{run.title}: {whole(sum(errors))}{beside}"
        found.append(Finding(text, not any(errors)) if errors else NOTHING)
    return all_of(found)


def memory(results: Results) -> Finding:
    path = ("after_use", "resident")
    ours, theirs = (results.median("resources", peer, *path) for peer in (OURS, RIVAL))
    if ours is None or theirs is None:
        return NOTHING
    return Finding(f"{ours:,.0f} MiB and {theirs:,.0f} MiB: {ours - theirs:+,.0f}", ours - theirs <= 120e6 / 2**20)


def start(results: Results) -> Finding:
    ours, theirs = (results.median("resources", peer, "seconds_to_ready") for peer in (OURS, RIVAL))
    if ours is None or theirs is None:
        return NOTHING
    return Finding(f"{seconds(ours)} and {seconds(theirs)}", ours - theirs <= 1.0)


AIMS = (
    Aim(
        "cancel-latency",
        "Cancel latency from the client's close, one in flight: 15 ms at p50, 40 ms at p99; prefill and decode, "
        "streaming or not",
        cancel_latency,
    ),
    Aim(
        "in-company",
        "With eight in flight: no later than the end of the running step, at most one token computed after the close",
        in_company,
    ),
    Aim("queued", "A queued client's hang-up while another one streams: out of the queue within 50 ms", queued),
    Aim(
        "typing-storm",
        "Typing storm in one session: last first token within 1.1 times what it takes alone",
        typing_storm,
    ),
    Aim(
        "stop-then-next",
        f"Stop in a long prefill to the next first token: 50 times shorter than {RIVAL}'s",
        stop_then_next,
    ),
    Aim("cpu-after-leaving", "CPU spent for clients that have left, 50 % run: under 1 % of all", cpu_after_leaving),
    Aim(
        "tokens",
        f"No cancels, tokens/s at 1, 4, 8 clients: at least {RIVAL}'s",
        no_worse("tokens_per_second", more=True),
    ),
    Aim("ttft", f"No cancels, TTFT at 1, 4, 8 clients: at least as good as {RIVAL}'s", no_worse("ttft", more=False)),
    Aim("itl", f"No cancels, ITL at 1, 4, 8 clients: at least as good as {RIVAL}'s", no_worse("itl", more=False)),
    Aim("tpot", f"No cancels, TPOT at 1, 4, 8 clients: at least as good as {RIVAL}'s", no_worse("tpot", more=False)),
    Aim("reference", f"No cancels, tokens/s at 1, 4, 8 clients: within 3 % of {REFERENCE}'s", near_reference),
    Aim("goodput", f"Goodput with 50 % cancelled: at least 1.3 times {RIVAL}'s", goodput),
    Aim("aiperf", "AIPerf: no errors but its own cancels, in every run", aiperf),
    Aim("memory", f"Memory: at most {RIVAL}'s resident set and 120 MB", memory),
    Aim("start", f"/health green at most 1 s after {RIVAL}'s", start),
)
