"""Make docs/metrics.md of what a server exposes, and deploy/alerts.yml of the table below:
`python tools/describe_metrics.py`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pyllmcancel.cancellation import CancelReason  # noqa: E402 - found by the line above
from pyllmcancel.drafting.sources import SOURCES  # noqa: E402
from pyllmcancel.events import FinishReason, RequestStatus  # noqa: E402
from pyllmcancel.scheduling.disk_floor import REFUSALS  # noqa: E402
from tests.support.http_world import one_of_each, open_world  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "deploy" / "alerts.yml"
HEAD = """\
# Metrics

<!-- Made by tools/describe_metrics.py of what a server exposes: change
pyllmcancel/server/running/metrics.py, and the tables in the tool. -->

`GET /metrics` has these metrics, each of one server since its start. [Metrics](observability.md#metrics) says who may
read them and how Prometheus finds several servers. While a model loads, the gauges are absent.

Times are in seconds. A histogram `NAME` has the series `NAME_bucket`, with the label `le`, `NAME_sum` and `NAME_count`.
A quantile of a histogram is never above its last bucket, which stands beside its type.
"""
SECTIONS = {
    "Server and model": "build_info model_info model_size_bytes model_context_tokens engine_dead compute_threads "
    "asyncio_tasks",
    "Requests": "requests_total requests_cancelled_total requests_waiting requests_running requests_paused "
    "requests_cancelling sessions_live streams_kept streams_unread streams_bytes",
    "Times": "cancel_latency_seconds queue_seconds ttft_seconds itl_seconds step_seconds engine_turn_seconds "
    "event_loop_lag_seconds",
    "Tokens": "prompt_tokens_total prefix_tokens_reused_total generated_tokens_total tokens_delivered_total "
    "tokens_computed_total tokens_wasted_total tokens_saved_total "
    "drafted_tokens_total accepted_draft_tokens_total",
    "Steps": "steps_aborted_total steps_redone_total steps_spared_total preemptions_total",
    "Slots and memory": "slots slots_used cells cells_used cells_idle checkpoint_bytes swapped_bytes "
    "past_answers_bytes events_kept",
    "Disk": "disk_bytes disk_prefixes disk_prefixes_written_total disk_written_bytes_total "
    "disk_prefixes_restored_total disk_restored_bytes_total disk_prefixes_refused_total",
}


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


LABELS = {
    "outcome": f"The end of the request: {listed([*FinishReason])}. A cancel is not an error.",
    "reason": f"[The reason of the cancel](cancelling.md): {listed([*CancelReason])}.",
    "phase": "The request's phase when it was cancelled: "
    f"{listed([RequestStatus.WAITING, RequestStatus.PREFILL, RequestStatus.DECODE])}.",
    "cause": f"[Why a prefix was not kept or not used](state-on-disk.md): {listed([*REFUSALS])}.",
    "source": f"[The source of the draft](drafting.md): {listed([*SOURCES])}.",
    "owner": "[The owner](cancelling.md) whose API key the request had, or `-` without a key.",
    "version, llama_cpp, python": "The versions of pyllmcancel and Python, and the commit of llama.cpp.",
    "name, description, memory": "The model's name in the API, its kind and size, and the kind of its memory: "
    "`attention`, `recurrent`, `hybrid` or `none`.",
}


class Alert(NamedTuple):
    """A rule for Prometheus; `summary` says what is wrong, and `action` what to do."""

    name: str
    query: str
    lasts: str
    severity: str
    summary: str
    action: str


ALERTS = (
    Alert(
        "PyllmcancelDown",
        'up{job=~"pyllmcancel.*"} == 0',
        "2m",
        "critical",
        "The server does not answer Prometheus.",
        "`up` is Prometheus's own metric. Look at the server's log; a wrong key for `/metrics` has the same effect.",
    ),
    Alert(
        "PyllmcancelEngineDead",
        "pyllmcancel_engine_dead == 1",
        "0m",
        "critical",
        "The engine thread has died, and nothing is served.",
        "The server ends with status 1, and its supervisor starts it again. The log has the exception.",
    ),
    Alert(
        "PyllmcancelNoSteps",
        "pyllmcancel_requests_running - pyllmcancel_requests_paused > 0 and "
        "rate(pyllmcancel_step_seconds_count[2m]) == 0",
        "1m",
        "critical",
        "Requests run, but no step ends.",
        "`/health` answers 503 once a step has run for more than 60 seconds. Look for a device that hangs, or for "
        "memory that is swapped to a disk.",
    ),
    Alert(
        "PyllmcancelCancelSlow",
        "histogram_quantile(0.99, sum by (le, instance) (rate(pyllmcancel_cancel_latency_seconds_bucket[10m]))) > 0.5",
        "10m",
        "warning",
        "One cancel in a hundred takes more than half a second.",
        "Compare `pyllmcancel_step_seconds`: where a step is not aborted in the middle, a cancel takes as long as the "
        "step. [Limits](limits.md) says where that is so.",
    ),
    Alert(
        "PyllmcancelCancelStuck",
        "pyllmcancel_requests_cancelling > 0 unless on (instance, job) "
        "sum by (instance, job) (rate(pyllmcancel_cancel_latency_seconds_count[2m])) > 0",
        "1m",
        "critical",
        "A request was cancelled, and its computation does not stop.",
        "Look for a step that hangs, as for PyllmcancelNoSteps.",
    ),
    Alert(
        "PyllmcancelErrors",
        'sum by (instance) (rate(pyllmcancel_requests_total{outcome="error"}[5m])) '
        "/ sum by (instance) (rate(pyllmcancel_requests_total[5m])) > 0.05",
        "5m",
        "critical",
        "More than 5 % of the requests fail.",
        "The line of each request's ending in the log has the error.",
    ),
    Alert(
        "PyllmcancelDeadlinesMissed",
        'sum by (instance) (rate(pyllmcancel_requests_cancelled_total{reason="deadline"}[10m])) '
        "/ sum by (instance) (rate(pyllmcancel_requests_total[10m])) > 0.05",
        "10m",
        "warning",
        "More than 5 % of the requests reach their deadline.",
        "Raise `--request-timeout`, limit `max_tokens`, or add a server.",
    ),
    Alert(
        "PyllmcancelQueueSlow",
        "histogram_quantile(0.95, sum by (le, instance, owner) (rate(pyllmcancel_queue_seconds_bucket[5m]))) > 10",
        "10m",
        "warning",
        "One request in twenty of an owner waits for more than 10 seconds.",
        "If it is so for every owner, the server has too much to do: add slots or a server.",
    ),
    Alert(
        "PyllmcancelFirstTokenSlow",
        "histogram_quantile(0.95, sum by (le, instance) (rate(pyllmcancel_ttft_seconds_bucket[5m]))) > 15",
        "10m",
        "warning",
        "One request in twenty waits for its first token for more than 15 seconds.",
        "If the queue is short, the prompts are long: compare `pyllmcancel_prefix_tokens_reused_total` with "
        "`pyllmcancel_prompt_tokens_total`.",
    ),
    Alert(
        "PyllmcancelTokensSlow",
        "histogram_quantile(0.95, sum by (le, instance) (rate(pyllmcancel_itl_seconds_bucket[5m]))) > 0.25",
        "10m",
        "warning",
        "One token in twenty comes later than 0.25 seconds after the one before.",
        "Lower `--parallel`, or look for other processes on the same cores.",
    ),
    Alert(
        "PyllmcancelEventLoopLate",
        "histogram_quantile(0.99, sum by (le, instance) (rate(pyllmcancel_event_loop_lag_seconds_bucket[5m]))) > 0.1",
        "10m",
        "warning",
        "The event loop is late, so a client that leaves is noticed late.",
        "Give the process a core that the compute threads leave free, by `--threads`.",
    ),
    Alert(
        "PyllmcancelCellsScarce",
        "rate(pyllmcancel_preemptions_total[10m]) > 0.1 and pyllmcancel_cells_used / pyllmcancel_cells > 0.9",
        "15m",
        "warning",
        "Choices lose their slots because the cells are full.",
        "Raise `--ctx-size`, or lower `--parallel`.",
    ),
    Alert(
        "PyllmcancelComputeWasted",
        "rate(pyllmcancel_tokens_wasted_total[30m]) / rate(pyllmcancel_tokens_computed_total[30m]) > 0.2",
        "30m",
        "warning",
        "Cancels waste more than one token for five that are computed.",
        "Steps are long beside the time between two cancels: lower `--ubatch-size`.",
    ),
    Alert(
        "PyllmcancelVersionsDiffer",
        "count(count by (version, llama_cpp) (pyllmcancel_build_info)) > 1",
        "1h",
        "warning",
        "The servers have different versions.",
        "Finish the upgrade, or take it back.",
    ),
)
ALERT_HEAD = """
## Alerts

[`deploy/alerts.yml`](../deploy/alerts.yml) has these rules for Prometheus, with their queries, and
`deploy/prometheus.yml` loads them. Their names begin with `Pyllmcancel`. The limits are where to start: adapt them to
the model, the machine, and what the clients expect. A query without data never fires.

| alert | severity | meaning | remedy |
|---|---|---|---|
"""
RULES_HEAD = """\
# Alerts for Prometheus; docs/metrics.md explains each. Made by tools/describe_metrics.py, which has the table.
groups:
  - name: pyllmcancel
    rules:
"""


async def exposed() -> str:
    """The answer of ``/metrics`` of a server whose every labelled metric has a sample."""
    async with open_world(parallel=1) as world:
        await one_of_each(world)
        return (await world.get("/metrics")).body.decode()


def page(text: str) -> str:
    """The whole page, of an answer of ``/metrics``; ValueError if a metric or a label has no place in it."""
    found = {full_name(family): family for family in text_string_to_metric_families(text)}
    placed = [f"pyllmcancel_{name}" for names in SECTIONS.values() for name in names.split()]
    if sorted(found) != sorted(placed):
        wrong = set(found) ^ set(placed) or "one is there twice"
        raise ValueError(f"metrics whose place in SECTIONS is wrong: {wrong}")
    known = {name for names in LABELS for name in names.split(", ")}
    used = {label for family in found.values() for label in labels(family)}
    if used != known:
        raise ValueError(f"labels whose place in LABELS is wrong: {used ^ known}")
    parts = [
        section(title, [found[f"pyllmcancel_{name}"] for name in names.split()]) for title, names in SECTIONS.items()
    ]
    return HEAD + "".join(parts) + label_section() + ALERT_HEAD + "".join(map(alert_row, ALERTS))


def full_name(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def labels(family: Metric) -> list[str]:
    return list(dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le"))


def section(title: str, families: list[Metric]) -> str:
    lines = "".join(map(line, families))
    return f"\n## {title}\n\n| metric | type, labels | meaning |\n|---|---|---|\n{lines}"


def line(family: Metric) -> str:
    kind = family.type
    if kind == "histogram":
        last = max(float(sample.labels["le"]) for sample in family.samples if sample.labels.get("le", "+Inf") != "+Inf")
        kind += f", to {last:g} s"
    alerts = ", ".join(short(alert) for alert in ALERTS if family.name in metrics_of(alert))
    kind = ", ".join(filter(None, (kind, listed(labels(family)))))
    meaning = family.documentation + (f" Alerts: {alerts}." if alerts else "")
    return f"| `{full_name(family)}` | {kind} | {meaning} |\n"


def metrics_of(alert: Alert) -> set[str]:
    """The families of the query's series."""
    return {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in re.findall(r"pyllmcancel_\w+", alert.query)}


def short(alert: Alert) -> str:
    return alert.name.removeprefix("Pyllmcancel")


def label_section() -> str:
    lines = "".join(f"| {listed(names.split(', '))} | {text} |\n" for names, text in LABELS.items())
    return f"\n## Labels\n\n| label | meaning |\n|---|---|\n{lines}"


def alert_row(alert: Alert) -> str:
    when = "at once" if alert.lasts == "0m" else f"after {alert.lasts}"
    return f"| {short(alert)} | {alert.severity}, {when} | {alert.summary} | {alert.action} |\n"


def rules() -> str:
    """The rules as a file for Prometheus."""
    return RULES_HEAD + "".join(
        f"      - alert: {alert.name}\n"
        f"        expr: >-\n          {alert.query}\n"
        f"        for: {alert.lasts}\n"
        f"        labels: {{severity: {alert.severity}}}\n"
        f'        annotations: {{summary: "{alert.summary}"}}\n'
        for alert in ALERTS
    )


if __name__ == "__main__":
    PAGE.write_text(page(asyncio.run(exposed())), "utf-8")
    RULES.write_text(rules(), "utf-8")
