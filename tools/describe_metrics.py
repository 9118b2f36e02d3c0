"""Make docs/metrics.md of what a server exposes, and of deploy/alerts.yml: `python tools/describe_metrics.py`."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pyllmcancel.cancellation import CancelReason  # noqa: E402 - found by the line above
from pyllmcancel.drafting.sources import SOURCES  # noqa: E402
from pyllmcancel.events import FinishReason, Limit, RequestStatus  # noqa: E402
from pyllmcancel.scheduling.disk_floor import REFUSALS  # noqa: E402
from tests.support.http_world import one_of_each, open_world  # noqa: E402

Rule = dict[str, Any]  # of alerts.yml
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
    "outcome": f"The end of the request: {listed([*FinishReason, Limit.REPETITION])}. A cancel is not an error.",
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


ALERT_HEAD = """
## Alerts

[`deploy/alerts.yml`](../deploy/alerts.yml) has these rules for Prometheus, with their queries, and
`deploy/prometheus.yml` loads them. Their names begin with `Pyllmcancel`. The limits are where to start: adapt them to
the model, the machine, and what the clients expect. A query without data never fires.

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
    return HEAD + "".join(parts) + label_section() + ALERT_HEAD + "".join(map(alert_row, alerts()))


def full_name(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def labels(family: Metric) -> list[str]:
    return list(dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le"))


def section(title: str, families: list[Metric]) -> str:
    lines = "".join(map(line, families))
    return f"\n## {title}\n\n{lines}"


def line(family: Metric) -> str:
    kind = family.type
    if kind == "histogram":
        last = max(float(sample.labels["le"]) for sample in family.samples if sample.labels.get("le", "+Inf") != "+Inf")
        kind += f", to {last:g} s"
    found = ", ".join(short(rule) for rule in alerts() if family.name in metrics_of(rule))
    kind = ", ".join(filter(None, (kind, listed(labels(family)))))
    meaning = family.documentation + (f" Alerts: {found}." if found else "")
    return f"- `{full_name(family)}` ({kind}): {meaning}\n"


def metrics_of(rule: Rule) -> set[str]:
    """The families of the query's series."""
    return {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in re.findall(r"pyllmcancel_\w+", rule["expr"])}


def short(rule: Rule) -> str:
    name: str = rule["alert"]
    return name.removeprefix("Pyllmcancel")


def label_section() -> str:
    return "\n## Labels\n\n" + "".join(f"- {listed(names.split(', '))}: {text}\n" for names, text in LABELS.items())


def alert_row(rule: Rule) -> str:
    when = "at once" if rule["for"] == "0m" else f"after {rule['for']}"
    summary, text = rule["annotations"]["summary"], rule["annotations"]["description"]
    remedy = re.sub(r"docs/(\w+)\.md", lambda page: f"[{page[1].title()}]({page[1]}.md)", text)
    return f"- **{short(rule)}** ({rule['labels']['severity']}, {when}): {summary} {remedy}\n"


def alerts() -> list[Rule]:
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return list(group["rules"])


if __name__ == "__main__":
    PAGE.write_text(page(asyncio.run(exposed())), "utf-8")
