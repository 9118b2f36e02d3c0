"""``/metrics``: names, values that are written where the computation ends, and the dashboard that asks for them."""

import asyncio
import json
import platform
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pyllmcancel import __version__
from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.token_stream import LoopSink
from pyllmcancel.step import StepStatus
from tests.support.http_process import RawClient, ServerProcess
from tests.support.http_world import World, one_of_each, open_world

ROOT = Path(__file__).parents[2]
PIN = ROOT / "vendor" / "llama.cpp" / "PIN.toml"

COUNTERS: dict[str, set[str]] = {"requests": {"outcome"}, "requests_cancelled": {"reason"}}
COUNTERS |= {f"{name}_tokens": set() for name in ("prompt", "generated")}
COUNTERS |= {f"tokens_{name}": set() for name in ("computed", "delivered", "wasted")}
COUNTERS |= {f"steps_{name}": set() for name in ("aborted", "redone", "spared")}
COUNTERS |= {name: set() for name in ("prefix_tokens_reused", "preemptions")}
HISTOGRAMS = {
    "queue_seconds": {"owner"},
    "ttft_seconds": set(),
    "itl_seconds": set(),
    "cancel_latency_seconds": {"phase"},
    "step_seconds": set(),
}
GAUGES = {"requests_waiting", "requests_running", "requests_cancelling", "sessions_live"}
CAPACITY = {"slots", "slots_used", "cells", "cells_used", "cells_idle", "model_size_bytes", "model_context_tokens"}
FACTS = {"build_info": {"version", "llama_cpp", "python"}, "model_info": {"name", "description", "memory"}}


class Metrics(dict[str, float]):
    """Samples by name, with their labels' values after a colon; what was never counted is 0."""

    def __missing__(self, name: str) -> float:
        return 0.0


async def metrics(world: World) -> Metrics:
    exchange = await world.get("/metrics")
    assert exchange.headers["content-type"].startswith("text/plain")
    found = Metrics()
    for family in text_string_to_metric_families(exchange.body.decode()):
        for sample in family.samples:
            labels = "".join(f":{value}" for value in sample.labels.values())
            found[sample.name.removeprefix("pyllmcancel_") + labels] = sample.value
    return found


async def test_every_name_is_there_with_its_type_and_labels() -> None:
    async with open_world(parallel=1) as world:
        text = (await world.get("/metrics")).body.decode()
        for name, label, values in (("", "outcome", FinishReason), ("_cancelled", "reason", CancelReason)):
            for value in values:
                assert f'pyllmcancel_requests{name}_total{{{label}="{value}"}} 0.0' in text, "before it happens"
        await one_of_each(world)
        text = (await world.get("/metrics")).body.decode()
        families = {family.name.removeprefix("pyllmcancel_"): family for family in text_string_to_metric_families(text)}
        assert all(line.startswith(("#", "pyllmcancel_")) for line in text.splitlines())
        for names, kind in (
            (COUNTERS, "counter"),
            (HISTOGRAMS, "histogram"),
            ({name: set() for name in GAUGES | CAPACITY | {"compute_threads"}} | FACTS, "gauge"),
        ):
            assert not [name for name in families if name.endswith("_created")], "no series that nobody asks for"
            for name, labels in names.items():
                assert families[name].type == kind
                assert families[name].documentation
                for sample in families[name].samples:
                    assert set(sample.labels) - {"le"} == labels, sample


async def test_the_page_is_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import describe_metrics

    try:
        text = await describe_metrics.exposed()
        assert describe_metrics.PAGE.read_text("utf-8") == describe_metrics.page(text), "run tools/describe_metrics.py"
        for new in ("pyllmcancel_new 1", 'pyllmcancel_slots{new="1"} 1'):
            with pytest.raises(ValueError, match="new"):
                describe_metrics.page(f"{text}{new}\n")
    finally:
        del sys.modules["describe_metrics"]


COUNTED = {
    "requests_total:length": 1,
    "requests_total:stop": 0,
    "requests_total:cancelled": 2,
    "requests_total:error": 0,
    "requests_cancelled_total:explicit": 1,
    "requests_cancelled_total:disconnect": 1,
    "cancel_latency_seconds_count:waiting": 1,
    "cancel_latency_seconds_count:decode": 1,
    "queue_seconds_count:-": 2,  # one was never admitted
    "ttft_seconds_count": 2,
    "itl_seconds_count": 2 + 1,
    "prompt_tokens_total": 8 + 5,
    "generated_tokens_total": 3 + 2,  # one answer was cut after two tokens
    "tokens_delivered_total": 3,
    # 8 of the prompt and 2 of 3 generated; 5 and 1 of 2; the aborted step's one token does not count.
    "tokens_computed_total": 8 + 2 + 5 + 1,
    "tokens_wasted_total": 1,
    "steps_aborted_total": 1,
    "steps_redone_total": 0,
    "steps_spared_total": 0,
    "step_seconds_count": 3 + 3,
}


async def test_what_a_whole_answer_and_two_cancelled_ones_count() -> None:
    async with open_world(parallel=1) as world, open_world() as beside:  # which does not mix with it
        await one_of_each(world)
        seen = await metrics(world)
        assert {name: seen[name] for name in COUNTED} == COUNTED
        assert (await metrics(beside))["requests_total:length"] == 0


async def test_every_choice_of_a_request_generates(world: World) -> None:
    await world.complete("hello", n=3, max_tokens=4, ignore_eos=True).end()
    assert (await metrics(world))["generated_tokens_total"] == 12


async def test_a_choice_that_gives_way_to_another_is_a_preemption() -> None:
    async with open_world(n_ctx=64) as world:
        older = await world.running_stream("older", [1] * 20, max_tokens=30)
        newer = await world.submitted("newer", [2] * 20, max_tokens=30, ignore_eos=True)
        world.gate.open()
        await older.end()
        assert (await newer.end()).json()["usage"]["completion_tokens"] == 30
        seen = await metrics(world)
        assert seen["preemptions_total"] > 0
        assert seen["generated_tokens_total"] == 60
        assert seen["prompt_tokens_total"] > 40, "what was preempted is computed once more"


async def test_llama_servers_dashboards_find_its_names(world: World) -> None:
    await world.complete("a prompt", max_tokens=3, ignore_eos=True).end()
    text = (await world.get("/metrics?format=llama-server")).body.decode().replace("llamacpp:", "")
    families = text_string_to_metric_families(text)
    found = {family.name: (family.type, family.samples[0].value) for family in families}
    assert found["prompt_tokens"] == ("counter", 8)
    assert found["tokens_predicted"] == ("counter", 3)
    assert found["n_tokens_max"][1] == 11
    assert found["n_decode"][1] == 3
    assert found["n_busy_slots_per_decode"] == ("gauge", 1)
    assert found["requests_processing"] == found["requests_deferred"] == ("gauge", 0)
    assert found["prompt_tokens_seconds"][1] > 0


async def test_what_is_served_and_with_what() -> None:
    with PIN.open("rb") as file:
        commit = tomllib.load(file)["llama_cpp"]["commit"]
    async with open_world(parallel=3, n_ctx=512) as world:
        text = (await world.get("/metrics")).body.decode()
        facts = {one.name: one.samples[0].labels for one in text_string_to_metric_families(text) if one.samples}
        built = {"version": __version__, "llama_cpp": commit, "python": platform.python_version()}
        assert facts["pyllmcancel_build_info"] == built
        served = {"name": "fake-model", "description": world.model.description, "memory": "attention"}
        assert facts["pyllmcancel_model_info"] == served
        for count in (2, 1):
            world.context.n_threads = count
            assert (await metrics(world))["compute_threads"] == count
        seen = await metrics(world)
        assert seen["model_size_bytes"] == world.model.size
        assert seen["model_context_tokens"] == world.engine.n_ctx
        assert (seen["slots"], seen["cells"]) == (3, 512)


async def test_each_owners_waiting_is_its_own() -> None:
    async with open_world(parallel=1) as world:
        sink = LoopSink(asyncio.get_running_loop())
        for owner in ("alice", "bob", "bob"):
            params = generation_params(max_tokens=1)
            request = world.engine.submit([[7] * 5], params, sink, owner=owner)
            await asyncio.wrap_future(request.ended)
        seen = await metrics(world)
        assert [seen[f"queue_seconds_count:{owner}"] for owner in ("alice", "bob", "-")] == [1, 2, 0]


async def test_the_gauges_follow_what_lives_and_slots_and_cells_in_use() -> None:
    async with open_world(parallel=1) as world:
        await world.running_stream("mine", prompt=[7] * 20, session_id="s")
        await world.submitted("waiting")
        seen = await metrics(world)
        assert [seen[name] for name in sorted(GAUGES)] == [0, 1, 1, 1]
        assert (seen["slots_used"], seen["cells_used"]) == (1, 0), "the first step has not ended"
        await world.step()
        await world.held()
        assert (await metrics(world))["cells_used"] == 20
        world.gate.open()
        await world.ended("waiting")
        seen = await metrics(world)
        assert [seen[name] for name in (*sorted(GAUGES), "slots_used", "cells_used")] == [0] * 6
        assert seen["cells_idle"] >= 20


async def test_a_failed_request_is_an_error_whose_tokens_were_not_delivered(world: World) -> None:
    exchange = await world.computing(max_tokens=50, ignore_eos=True, n_steps=2)
    world.context.next_status.append(StepStatus.FAILED_COMPUTE)
    world.gate.open()
    assert (await exchange.end()).json()["usage"]["completion_tokens"] == 2
    seen = await metrics(world)
    assert (seen["requests_total:error"], seen["requests_total:cancelled"]) == (1, 0)
    assert seen["tokens_delivered_total"] == 0


async def test_a_prefix_that_is_found_is_counted_once(world: World) -> None:
    for _ in range(2):
        # Undrafted: a token that is known leaves nothing of the prompt to compute.
        await world.complete("the same prompt", max_tokens=1, temperature=0, **{"speculative.n_max": 0}).end()
    assert (await metrics(world))["prefix_tokens_reused_total"] == len("the same prompt") - 1


async def test_a_computation_that_has_ended_is_counted_while_its_client_still_does_not_read(world: World) -> None:
    exchange = await world.running_stream("mine", max_tokens=3)
    await exchange.until_headers()
    exchange.stop_reading()
    world.gate.open()
    await world.ended("mine")
    assert not exchange.task.done()
    seen = await metrics(world)
    assert (seen["requests_total:length"], seen["tokens_delivered_total"]) == (1, 3)


async def test_a_cancelled_computation_is_not_counted_before_it_has_stopped(world: World) -> None:
    await world.running_stream("neighbour")
    await world.submitted("mine", max_tokens=50, ignore_eos=True)
    await world.step(3)
    await world.held()
    world.gate.move_on(0.99)
    await world.post("/v1/requests/mine/cancel?wait=false")
    seen = await metrics(world)
    assert (seen["requests_cancelling"], seen["requests_running"], seen["requests_total:cancelled"]) == (1, 1, 0)
    await world.step()
    await world.ended("mine")
    seen = await metrics(world)
    assert (seen["requests_cancelling"], seen["requests_total:cancelled"], seen["steps_spared_total"]) == (0, 1, 1)


# -- the dashboard and the alerts of ``deploy`` ask for what there is --------------------------------------------------


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
    return json.loads(DASHBOARD.read_text())


def targets() -> Iterator[tuple[str, str, str]]:
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
