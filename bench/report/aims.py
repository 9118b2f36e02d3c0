"""The aims, and whether the figures of a run meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.report.results import OURS, REFERENCE, RIVAL, Results, per_cent, seconds, whole
from bench.side_by_side.aiperf import PAGE_RUNS, RUNS
from bench.side_by_side.cancel_latency import KINDS
from bench.side_by_side.load import REQUESTS
from pyllmcancel.bench.percentiles import percentile


class Verdict(StrEnum):
    """How an aim came out."""

    MET = "met"
    MISSED = "**missed**"
    UNKNOWN = "not measured"


Finding = tuple[str, bool] | None
"""What was found, in words, and whether it is good enough; None: nothing was found."""


@dataclass(frozen=True, slots=True)
class Aim:
    """Something to be reached; `key` names it in remarks.toml, `between` stands between what was found."""

    key: str
    text: str
    find: Callable[[Results], Sequence[Finding]]
    between: str = "; "

    def judge(self, results: Results) -> tuple[Verdict, str]:
        """Met if all that is asked for was found and is good; missed as soon as one is not."""
        findings = self.find(results)
        known = [finding for finding in findings if finding is not None]
        text = self.between.join(text for text, _ in known)
        if not all(good for _, good in known):
            return Verdict.MISSED, text
        return (Verdict.MET if known and len(known) == len(findings) else Verdict.UNKNOWN), text


def at_most(limit: float, value: float | None, text: Callable[[float], str]) -> Finding:
    return None if value is None else (text(value), value <= limit)


def at_least(limit: float, value: float | None, text: Callable[[float], str]) -> Finding:
    return None if value is None else (text(value), value >= limit)


def cancel_latency(results: Results) -> list[Finding]:
    found: list[Finding] = []
    for kind in KINDS:
        values = results.values("cancel-latency", OURS, kind.name, "latency")
        p50, p99 = percentile(values, 50), percentile(values, 99)
        found += [
            None if p50 is None else (f"{kind.name}: p50 {seconds(p50)}", p50 <= 0.015),
            None if p99 is None else (f"p99 {seconds(p99)} of {len(values)}", p99 <= 0.040),
        ]
    return found


def in_company(results: Results) -> list[Finding]:
    tokens = results.values("cancel-in-company", OURS, "tokens_after")
    steps = results.values("cancel-in-company", OURS, "steps_begun_after")
    return [
        at_most(1, max(tokens, default=None), lambda value: f"at most {whole(value)} tokens, {len(tokens)} cancels"),
        at_most(0, max(steps, default=None), lambda value: f"in {whole(value)} steps that began after it"),
    ]


def queued(results: Results) -> list[Finding]:
    values = results.values("queued-hang-up", OURS, "noticed_after")
    theirs = results.median("queued-hang-up", RIVAL, "noticed_after")
    beside = "" if theirs is None else f" ({RIVAL}: {seconds(theirs)})"
    if never := sum(results.values("queued-hang-up", OURS, "never_noticed")):
        return [(f"{whole(never)} were never noticed", False)]
    worst = max(values, default=None)
    return [at_most(0.050, worst, lambda value: f"worst of {len(values)}: {seconds(value)}{beside}")]


def typing_storm(results: Results) -> list[Finding]:
    return [at_most(1.1, results.median("typing-storm", OURS, "ratio"), "{:.2f} times as long".format)]


def stop_then_next(results: Results) -> list[Finding]:
    ratio = results.ratio("stop-then-next", ("stop_to_first_token",))
    return [at_least(50, 1 / ratio if ratio else None, "{:.0f} times shorter".format)]


def cpu_after_leaving(results: Results) -> list[Finding]:
    return [at_most(0.01, results.share("cpu-after-leaving", OURS, "cpu_after_leaving", "cpu_seconds"), per_cent)]


def no_worse(path: str, *, more: bool) -> Callable[[Results], list[Finding]]:
    """Judge a figure of speed at each number of clients against llama-server's, as ratio of the better to the worse."""

    def find(results: Results) -> list[Finding]:
        found = []
        for n in REQUESTS:
            ours, theirs = (results.median(f"throughput-{n}", peer, path) for peer in (OURS, RIVAL))
            above, below = (ours, theirs) if more else (theirs, ours)
            # An ITL of zero is possible, where most tokens share an event: theirs is a miss, ours is not judged.
            good = above / below if above is not None and below else None
            found.append(at_least(1.0, good, "{:.2f}".format))
        return found

    return find


def near_reference(results: Results) -> list[Finding]:
    ratios = [results.ratio(f"throughput-{n}", ("tokens_per_second",), REFERENCE) for n in REQUESTS]
    return [at_least(0.97, ratio, "{:.2f}".format) for ratio in ratios]


def goodput(results: Results) -> list[Finding]:
    return [at_least(1.3, results.ratio("goodput-50", ("tokens_per_second",)), "{:.2f} times".format)]


def aiperf(results: Results) -> list[Finding]:
    found: list[Finding] = []
    for run in (*RUNS, *PAGE_RUNS):
        errors = results.values(f"aiperf-{run.name}", OURS, "errors")
        if run in PAGE_RUNS and not errors:
            continue  # minutes each, so not of every model
        theirs = results.values(f"aiperf-{run.name}", RIVAL, "errors")
        beside = f" ({RIVAL}: {whole(sum(theirs))})" if theirs else ""
        found.append((f"{run.title}: {whole(sum(errors))}{beside}", not any(errors)) if errors else None)
    return found


def memory(results: Results) -> list[Finding]:
    ours, theirs = (results.median("resources", peer, "after_use", "resident") for peer in (OURS, RIVAL))
    if ours is None or theirs is None:
        return [None]
    return [(f"{ours:,.0f} MiB and {theirs:,.0f} MiB: {ours - theirs:+,.0f}", ours - theirs <= 120e6 / 2**20)]


def start(results: Results) -> list[Finding]:
    ours, theirs = (results.median("resources", peer, "seconds_to_ready") for peer in (OURS, RIVAL))
    return [None if ours is None or theirs is None else (f"{seconds(ours)} and {seconds(theirs)}", ours - theirs <= 1)]


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
        "Typing storm under one key: last first token within 1.1 times what it takes alone",
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
        ", ",
    ),
    *(
        Aim(
            name,
            f"No cancels, {name.upper()} at 1, 4, 8 clients: at least as good as {RIVAL}'s",
            no_worse(name, more=False),
            ", ",
        )
        for name in ("ttft", "itl", "tpot")
    ),
    Aim("reference", f"No cancels, tokens/s at 1, 4, 8 clients: within 3 % of {REFERENCE}'s", near_reference, ", "),
    Aim("goodput", f"Goodput with 50 % cancelled: at least 1.3 times {RIVAL}'s", goodput),
    Aim("aiperf", "AIPerf: no errors but its own cancels, in every run", aiperf),
    Aim("memory", f"Memory: at most {RIVAL}'s resident set and 120 MB", memory),
    Aim("start", f"/health green at most 1 s after {RIVAL}'s", start),
)
