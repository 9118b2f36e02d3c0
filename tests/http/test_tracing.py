"""``--otel``: one trace for each request, that goes on its client's, and stops nobody."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pyllmcancel.cli.opening import open_tracing
from pyllmcancel.errors import UsageError
from pyllmcancel.server.running import tracing as module
from pyllmcancel.server.running.tracing import OneLineExporter, Tracing
from tests.support.http_process import ServerProcess
from tests.support.http_world import COMPLETIONS, World, open_world
from tests.support.otlp_collector import Collector

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
PROMPT = "a secret prompt"
REQUEST = "text_completion fake-model"


class Traced:
    """The exported spans of a server."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing(self._exporter)

    @asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        async with open_world(otel=True) as world:
            world.engine.add_observer(self.tracing)
            yield world

    def spans(self) -> dict[str, list[ReadableSpan]]:
        """By their names; nothing more is exported."""
        self.tracing.close()
        found: dict[str, list[ReadableSpan]] = {}
        for span in self._exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


@pytest.fixture
def traced() -> Iterator[Traced]:
    found = Traced()
    yield found
    found.tracing.close()


async def post(world: World, headers: dict[str, str] | None = None, **fields: Any) -> int:
    body = {"prompt": PROMPT, "max_tokens": 4} | fields
    return (await world.begin("POST", COMPLETIONS, body, headers=headers or {}).end()).status


async def test_a_request_is_a_server_span_with_its_phases_inside_it(traced: Traced) -> None:
    async with traced.world() as world:
        headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "x-session-id": "talk"}
        assert await post(world, headers) == 200
        await post(world, {"traceparent": f"00-{TRACE}-{PARENT}-00"})  # which its client does not sample
    spans = traced.spans()
    assert {span.context.trace_id for each in spans.values() for span in each} == {int(TRACE, 16)}
    assert set(spans) == {REQUEST, "queue", "prefill", "decode"}
    (request,) = spans[REQUEST]
    assert (request.kind, request.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert request.parent is not None
    assert (request.parent.span_id, request.parent.trace_state.get("vendor")) == (int(PARENT, 16), "1")
    attributes = dict(request.attributes or {})
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.model"] == "fake-model"
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (len(PROMPT), 4)
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["gen_ai.conversation.id"] == "talk"
    begins, ends = [], []
    for name in ("queue", "prefill", "decode"):
        (phase,) = spans[name]
        assert phase.parent
        assert phase.parent.span_id == request.context.span_id
        begins.append(phase.start_time)
        ends.append(phase.end_time)
    assert begins == [request.start_time, *ends[:2]]
    assert ends[2] == request.end_time
    assert PROMPT not in request.to_json()


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
async def test_without_a_trace_of_the_client_each_request_has_its_own(traced: Traced, traceparent: str) -> None:
    async with traced.world() as world:
        for _ in range(2):
            await post(world, {"traceparent": traceparent})
    found = traced.spans()[REQUEST]
    assert [span.parent for span in found] == [None, None]
    assert len({span.context.trace_id for span in found}) == 2


async def test_a_cancel_is_an_event_and_no_error(traced: Traced) -> None:
    async with traced.world() as world:
        exchange = await world.computing(PROMPT, headers={"x-request-id": "mine"})
        await world.bring_about("explicit")
        world.gate.open()
        assert (await exchange.end()).status == 499
        told = (await world.get("/v1/requests/mine")).json()
    spans = traced.spans()
    (request,) = spans[REQUEST]
    assert request.status.status_code is StatusCode.UNSET
    told_of = request.attributes or {}
    assert told_of["gen_ai.response.finish_reasons"] == ("cancelled",)
    assert (told_of["pyllmcancel.request.id"], told_of["pyllmcancel.request.priority"]) == ("mine", 0)
    (event,) = request.events
    attributes = dict(event.attributes or {})
    assert (event.name, attributes["pyllmcancel.cancel.reason"]) == ("cancelled", "explicit")
    assert attributes["pyllmcancel.cancel.latency_ms"] == pytest.approx(told["cancel_latency_ms"], abs=0.01)
    assert request.start_time is not None
    assert request.end_time is not None
    assert request.start_time <= event.timestamp <= request.end_time
    assert set(spans) == {"text_completion fake-model", "queue", "prefill"}


async def test_what_was_superseded_is_linked(traced: Traced) -> None:
    async with traced.world() as world:
        older = await world.computing(PROMPT, supersede="k", headers={"x-request-id": "old"})
        newer = await world.submitted("new", PROMPT, supersede="k", max_tokens=2)
        world.gate.open()
        assert ((await older.end()).status, (await newer.end()).status) == (499, 200)
    found = {(span.attributes or {})["gen_ai.response.id"]: span for span in traced.spans()[REQUEST]}
    assert [link.context.span_id for link in found["new"].links] == [found["old"].context.span_id]
    assert (found["old"].attributes or {})["pyllmcancel.cancel.superseded_by"] == "new"


class Stuck(SpanExporter):
    """A collector that takes a connection, and says nothing."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        self.n_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.go.wait()
        self.n_spans += len(spans)
        return SpanExportResult.SUCCESS


async def test_a_collector_that_is_stuck_stops_nobody_and_what_waits_for_it_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.0)
    exporter = Stuck()
    tracing = Tracing(exporter)
    try:
        async with open_world(otel=True) as world:
            world.engine.add_observer(tracing)
            for _ in range(2):
                await post(world)
            assert exporter.asked.wait(60)
            for _ in range(6):
                assert await post(world) == 200
        tracing.close()
        assert "could not be exported within" in caplog.text
    finally:
        exporter.go.set()
        for thread in threading.enumerate():
            if thread.name == "pyllmcancel-otel-flush":
                thread.join()
    assert 8 <= exporter.n_spans <= 16


class Failing(SpanExporter):
    def __init__(self) -> None:
        self.results = [*[SpanExportResult.FAILURE] * 3, *[SpanExportResult.SUCCESS] * 2, SpanExportResult.FAILURE]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.results.pop(0)


def test_a_collector_that_is_down_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exporter = OneLineExporter(Failing())
    for _ in range(6):
        exporter.export([])
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_a_server_exports_to_a_collector_before_it_ends(long_model: Path) -> None:
    with Collector() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "mine"}
        environment |= {"PYLLMCANCEL_OTEL": "1"}
        with ServerProcess("--model", str(long_model), "--store", "off", environment=environment) as server:
            headers = {"traceparent": TRACEPARENT, "x-request-id": "r1"}
            body = {"prompt": "hello", "max_tokens": 2}
            assert server.started().http.post(COMPLETIONS, json=body, headers=headers).status_code == 200
            server.signal()
            server.wait()
    assert {span.name for span in collector.spans} == {"text_completion long", "queue", "prefill", "decode"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    request = next(span for span in collector.spans if span.name == "text_completion long")
    assert request.parent_span_id.hex() == PARENT
    values = {one.key: one.value for one in request.attributes}
    assert (values["gen_ai.response.id"].string_value, values["gen_ai.usage.output_tokens"].int_value) == ("r1", 2)
    assert collector.resources[0]["service.name"] == "mine"


def test_a_wrong_variable_is_an_error_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(UsageError, match="OpenTelemetry"):
        open_tracing(wanted=True)
    assert open_tracing(wanted=False) is None
