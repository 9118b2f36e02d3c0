"""``deploy/grafana.json`` asks only for metrics and labels that a server has, and for all of them but details.
``deploy/alerts.yml``, too, asks only for what there is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http_process import RawClient, ServerProcess

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
ALERTS = DASHBOARD.with_name("alerts.yml")
SCRAPED = {"instance", "job", "le"}  # labels that Prometheus adds, or makes of buckets
NAME = re.compile(r"\bpyllmcancel_\w+")
# Of PromQL: what is in the braces of a selector, what is in the brackets of `by`; of a legend: what it is filled with.
SELECTOR, BY, LEGEND = re.compile(r"\{([^{}]*)\}"), re.compile(r"\bby \(([^)]*)\)"), re.compile(r"\{\{(\w+)\}\}")
# Details, for whom the names are enough.
NOT_SHOWN = {
    *("tokens_computed", "tokens_delivered", "sessions_live", "compute_threads", "asyncio_tasks"),
    *("disk_prefixes", "disk_written_bytes", "disk_restored_bytes", "streams_kept", "events_kept"),
}

Labels = dict[str, set[str]]


def read_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def targets() -> Iterator[tuple[str, str, str]]:
    """Panel, expression and legend of each query."""
    for panel in read_dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def labels_used(expression: str, legend: str) -> set[str]:
    selected = [part.split("=")[0] for found in SELECTOR.findall(expression) for part in found.split(",") if part]
    grouped = [part.strip() for found in BY.findall(expression) for part in found.split(",")]
    return {label.strip("!~ ") for label in selected} | set(grouped) | set(LEGEND.findall(legend))


@pytest.fixture(scope="module")
def samples(server: ServerProcess) -> Labels:
    """Labels by the name of each sample, after one answer and one cancel."""
    assert server.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3}).status_code == 200
    with RawClient(server.port) as client:
        request_id = client.post(stream=True)
        server.wait_for(request_id, completion_tokens=lambda n: n > 1)
        client.leave("reset")
    server.wait_for(request_id, status="cancelled")
    found: Labels = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("panel", "expression", "legend"), list(targets()))
def test_a_query_asks_for_what_there_is(samples: Labels, panel: str, expression: str, legend: str) -> None:
    names = NAME.findall(expression)
    assert names, panel
    for name in names:
        assert name in samples
        assert labels_used(expression, legend) <= samples[name] | SCRAPED


def test_an_alert_asks_for_what_there_is(samples: Labels) -> None:
    """A label has to be one of some metric in the same expression."""
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        names = set(NAME.findall(rule["expr"]))
        assert names <= set(samples), rule["alert"]
        assert labels_used(rule["expr"], "") <= SCRAPED.union(*(samples[name] for name in names)), rule["alert"]


def test_the_dashboards_variables_ask_for_what_there_is(samples: Labels) -> None:
    queries = [entry["query"]["query"] for entry in read_dashboard()["templating"]["list"] if entry["type"] == "query"]
    assert queries
    for query in queries:
        (name,) = NAME.findall(query)
        assert name in samples


def test_every_metric_is_shown_but_for_details(samples: Labels) -> None:
    families = {re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in samples}
    shown = {
        re.sub(r"_(total|bucket)$", "", name) for _, expression, _ in targets() for name in NAME.findall(expression)
    }
    assert {family.removeprefix("pyllmcancel_") for family in families - shown} == NOT_SHOWN


def test_panels_do_not_overlap_and_each_has_a_number_of_its_own() -> None:
    panels = read_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
