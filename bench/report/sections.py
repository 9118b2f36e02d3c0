"""The report's sections, one for each measurement: a row for a figure, a column for a peer, and the ratios to two of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.results import BEFORE, OURS, RIVAL, Results, mib, per_cent, rate, seconds, times, whole
from bench.side_by_side.aiperf import PAGE_RUNS, RUNS
from bench.side_by_side.cancel_latency import KINDS
from bench.side_by_side.load import ANSWER, LONG_ANSWER, LONG_CLIENTS, LONG_PROMPT, PERCENTS, PROMPT, REQUESTS
from bench.tables import head, line
from pyllmcancel.bench.percentiles import percentile

Take = Callable[[Results, str], float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: what takes it of a peer's results, None if it was not measured, and how it is written.

    `better` is the direction that is better; None: there is none, and no ratio is shown.
    """

    label: str
    take: Take
    show: Callable[[float], str]
    better: Literal["less", "more"] | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what was done, its table, and the plots that `pictures` makes of it."""

    title: str
    text: str
    rows: Sequence[Row]
    pictures: Sequence[str] = ()


def at(measurement: str, *path: str, percent: float = 50.0) -> Take:
    """A percentile, by default the median, of all values of all rounds."""
    return lambda results, peer: percentile(results.values(measurement, peer, *path), percent)


def count(measurement: str, *path: str) -> Take:
    """How many values there are."""
    return lambda results, peer: float(len(results.values(measurement, peer, *path))) or None


def total(measurement: str, *path: str) -> Take:
    """The sum of all values."""
    return lambda results, peer: sum(found) if (found := results.values(measurement, peer, *path)) else None


def share(measurement: str, part: str, whole: str) -> Take:
    """One sum over another."""
    return lambda results, peer: results.share(measurement, peer, part, whole)


def markdown(results: Results, rows: Sequence[Row]) -> list[str]:
    """The table's lines. A peer of which nothing is known has no column, such a figure no row."""
    found = {row: {peer: row.take(results, peer) for peer in results.peers} for row in rows}
    peers = [peer for peer in results.peers if any(found[row][peer] is not None for row in rows)]
    if not peers:
        return ["Not measured."]
    compared = [name for name in (RIVAL, BEFORE) if name in peers and OURS in peers]
    lines = head(["", *peers, *(f"better than {name}" for name in compared)])
    for row in rows:
        values = [found[row][peer] for peer in peers]
        if all(value is None for value in values):
            continue
        cells = ["-" if value is None else row.show(value) for value in values]
        ratios = [factor(found[row][OURS], found[row][name], row.better) for name in compared]
        lines.append(line([row.label, *cells, *ratios]))
    return lines


def factor(ours: float | None, theirs: float | None, better: Literal["less", "more"] | None) -> str:
    """How many times better ours is."""
    if better is None or ours is None or theirs is None:
        return ""
    above, below = (theirs, ours) if better == "less" else (ours, theirs)
    if below <= 0:
        return ""
    return f"{above / below:,.0f} times" if above / below >= 20 else f"{above / below:.2f} times"


# -- what is shown -----------------------------------------------------------------------------------------------------


def speed_rows(measurement: str, clients: int) -> list[Row]:
    label = f"{clients} client{'s' if clients > 1 else ''}"
    return [
        Row(f"{label}: tokens/s", at(measurement, "tokens_per_second"), rate, "more"),
        Row(f"{label}: TTFT p50", at(measurement, "ttft"), seconds, "less"),
        Row(f"{label}: ITL p50", at(measurement, "itl"), seconds, "less"),
        Row(f"{label}: ITL p99", at(measurement, "itl", percent=99), seconds, "less"),
        Row(f"{label}: TPOT p50", at(measurement, "tpot"), seconds, "less"),
        Row(f"{label}: errors", total(measurement, "errors"), whole),
    ]


def latency_rows() -> list[Row]:
    rows = []
    for kind in KINDS:
        path = (kind.name, "latency")
        rows += [
            Row(f"{kind.name}: p50", at("cancel-latency", *path), seconds, "less"),
            Row(f"{kind.name}: p99", at("cancel-latency", *path, percent=99), seconds, "less"),
            Row(f"{kind.name}: cancels", count("cancel-latency", *path), whole),
        ]
    return rows


def aiperf_rows() -> list[Row]:
    rows = []
    for run in (*RUNS, *PAGE_RUNS):
        name = f"aiperf-{run.name}"
        rows += [
            Row(f"{run.title}: answered", total(name, "ok"), whole),
            Row(f"{run.title}: cut by AIPerf", total(name, "cancelled"), whole),
            Row(f"{run.title}: **errors**", total(name, "errors"), whole),
            Row(f"{run.title}: tokens/s", at(name, "tokens_per_second"), rate, "more"),
            Row(f"{run.title}: TTFT p50, ms", at(name, "ttft_p50_ms"), whole, "less"),
        ]
    return rows


SECTIONS = (
    Section(
        "No cancels: speed",
        f"A closed loop of clients, prompts of {PROMPT} tokens, answers of {ANSWER}; a connection for each request. "
        "ITL is each gap between two successive tokens of an answer, TPOT an answer's mean of them. "
        "`llama-batched-bench` computes the same batches with no server around them, all prompts at once, and samples "
        "nothing: its tokens/s are those of the answers over the whole time.",
        [row for clients in REQUESTS for row in speed_rows(f"throughput-{clients}", clients)],
        ("throughput",),
    ),
    Section(
        "No cancels: long prompts",
        f"Prompts of {LONG_PROMPT} tokens, answers of {LONG_ANSWER}.",
        speed_rows("throughput-long-prompts", LONG_CLIENTS),
    ),
    Section(
        "Cancel latency, one request in flight",
        "From the moment at which the client closes its socket until the threads of the server's process rest, by the "
        "kernel's accounting of their CPU time. Nothing that the server says about itself is used.",
        latency_rows(),
        ("cancel-latency-prefill", "cancel-latency-decode"),
    ),
    Section(
        "Cancel latency, eight in flight",
        "One of eight streaming clients leaves. Tokens computed for it after its close are counted in the server's "
        "record of steps, where it has one, else by what its log says of the slot, less what had reached the client.",
        (
            Row("tokens after the close, p50", at("cancel-in-company", "tokens_after"), whole, "less"),
            Row("tokens after the close, worst", at("cancel-in-company", "tokens_after", percent=100), whole, "less"),
            Row("steps begun after it, worst", at("cancel-in-company", "steps_begun_after", percent=100), whole),
            Row("in the log after, p50", at("cancel-in-company", "noticed_after"), seconds, "less"),
            Row("in the log after, worst", at("cancel-in-company", "noticed_after", percent=100), seconds, "less"),
            Row("cancels", count("cancel-in-company", "tokens_after"), whole),
        ),
    ),
    Section(
        "A queued client hangs up while another one's answer streams",
        "The only slot streams; five clients queue up and leave. Until the server's log says so.",
        (
            Row("noticed after, p50", at("queued-hang-up", "noticed_after"), seconds, "less"),
            Row("noticed after, worst", at("queued-hang-up", "noticed_after", percent=100), seconds, "less"),
            Row("never noticed", total("queued-hang-up", "never_noticed"), whole),
            Row("the stream took", at("queued-hang-up", "stream_seconds"), seconds),
        ),
    ),
    Section(
        "Typing storm",
        "Eight requests 0.3 s apart, prompts of some 700 tokens that differ at their head, sockets kept open. With a "
        "key all carry the same one in the header under which the newest supersedes the others (`X-Supersede`, "
        "`X-Conversation-Id`).",
        (
            Row("alone: first token", at("typing-storm", "ttft_alone_s"), seconds, "less"),
            Row("key: last key's first token", at("typing-storm", "ttft_last_key_s"), seconds, "less"),
            Row("key: times as long as alone", at("typing-storm", "ratio"), times, "less"),
            Row("no key: last key's", at("typing-storm-no-key", "ttft_last_key_s"), seconds, "less"),
            Row("no key: times as long as alone", at("typing-storm-no-key", "ratio"), times, "less"),
        ),
        ("typing-storm",),
    ),
    Section(
        "Stop in a long prefill, then an unrelated request",
        "A prompt of 2000 tokens is stopped by hanging up after 1 s; a request of 16 tokens follows at once.",
        (
            Row("stop to its first token, p50", at("stop-then-next", "stop_to_first_token"), seconds, "less"),
            Row("worst", at("stop-then-next", "stop_to_first_token", percent=100), seconds, "less"),
            Row("the same request alone", at("stop-then-next", "ttft_alone_s"), seconds, "less"),
        ),
        ("stop-then-next",),
    ),
    Section(
        "A load of which a part hangs up",
        "Eight clients, prompts of 100 tokens, answers of 40; a client that hangs up does so 1 s after "
        "its request was sent. Goodput is the tokens of complete answers over the whole time. The CPU time after "
        "leaving is that of the server's process from a hang-up until it rests, with one client and every other "
        "request cut.",
        (
            *(
                Row(f"{n} %: goodput, tokens/s", at(f"goodput-{n}", "tokens_per_second"), rate, "more")
                for n in PERCENTS
            ),
            *(Row(f"{n} %: errors", total(f"goodput-{n}", "errors"), whole) for n in PERCENTS),
            Row("CPU after leaving, of all", share("cpu-after-leaving", "cpu_after_leaving", "cpu_seconds"), per_cent),
        ),
        ("goodput",),
    ),
    Section(
        "AIPerf",
        "NVIDIA's AIPerf 0.13.0 with the runs of its page on request cancellation, no network, and a pace of 100 looks "
        "a second for a free slot, because its own closed loop spins on a core. Its clients keep their connections. "
        "Errors are those of requests that it did not cut itself. Runs with the page's own lengths name the tokens.",
        aiperf_rows(),
    ),
    Section(
        "Memory, start and end",
        "The same model, four slots, 4096 cells of context. Resident memory has the pages of the mapped file in it.",
        (
            Row("resident when ready", at("resources", "when_ready", "resident"), mib, "less"),
            Row("resident after use", at("resources", "after_use", "resident"), mib, "less"),
            Row("of it allocated", at("resources", "after_use", "allocated"), mib, "less"),
            Row("of it mapped files", at("resources", "after_use", "mapped"), mib),
            Row("start to ready, p50", at("resources", "seconds_to_ready"), seconds, "less"),
            Row("SIGTERM to exit, streaming", at("shutdown", "seconds_to_exit"), seconds, "less"),
            Row("SIGTERM: still there after", at("shutdown", "gave_up_after"), seconds),
            Row("SIGTERM: answers that looked complete", total("shutdown", "looked_complete"), whole),
        ),
    ),
)
