"""A trace of each request, by OpenTelemetry. ``--otel`` switches it on, and it needs the extra ``[otel]``.

All spans of a request are made at its end, from the times that it has, and put into the queue of the SDK's batch
processor, whose thread exports them: nothing waits for a collector. A full queue drops the oldest spans. Spans contain
no prompts and no answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import Status, StatusCode
from opentelemetry.util.types import AttributeValue

from pyllmcancel import __version__
from pyllmcancel.events import Ending, FinishReason
from pyllmcancel.requests.observer import Observer
from pyllmcancel.requests.request import Request
from pyllmcancel.shares import Remembered

logger = logging.getLogger("pyllmcancel.otel")

FLUSH_SECONDS = 3.0  # how long the end of the server waits for a collector
MAX_SUPERSEDED = 1024  # ended requests to link with a newer one, which still lives
MAX_LINKS = 32  # links of one request
OPERATIONS = {
    **dict.fromkeys(("/v1/completions", "/completions", "/completion", "/infill"), "text_completion"),
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/embedding"), "embeddings"),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"), "rerank"),
}


class Tracing(Observer):
    """Observes an engine, and exports a trace of each of its requests, by default by OTLP over HTTP, as OpenTelemetry's
    variables (``OTEL_EXPORTER_OTLP_ENDPOINT`` …) say.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OneLineExporter(exporter or OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("pyllmcancel", __version__)
        self._lock = threading.Lock()
        # By the request that superseded them; guarded by the lock, because any thread may end a request.
        self._superseded = Remembered[str, list[SpanContext]](MAX_SUPERSEDED)

    def request_ended(self, request: Request, ending: Ending) -> None:
        trace = request.trace
        assert request.ended_at is not None
        # One difference of the clocks for all times of a trace, so that its spans fit into each other.
        epoch = time.time_ns() - time.monotonic_ns()
        operation = "chat" if trace is None else OPERATIONS.get(trace.path, "chat")
        span = self._tracer.start_span(
            operation if trace is None or not trace.model else f"{operation} {trace.model}",
            context=_parent(request),
            kind=SpanKind.SERVER,
            attributes=_attributes(request, ending, operation),
            links=self._links(request),
            start_time=_at(request.arrived_at, epoch),
        )
        if span.is_recording():
            self._phases(request, set_span_in_context(span, Context()), epoch)
            requested_at = request.cancellation.requested_at
            if ending.cancel_reason is not None and requested_at is not None:
                span.add_event("cancelled", _cancel_attributes(request, ending), _at(requested_at, epoch))
            if ending.finish_reason is FinishReason.ERROR:
                span.set_status(Status(StatusCode.ERROR, ending.error))
        self._note_superseded(request, span.get_span_context())
        span.end(_at(request.ended_at, epoch))

    def close(self) -> None:
        """Export the remaining spans, for `FLUSH_SECONDS` at most. Idempotent."""
        # The SDK's own limits bound neither an export in progress nor its retries.
        flushing = threading.Thread(target=self._provider.shutdown, name="pyllmcancel-otel-flush", daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)
        if flushing.is_alive():
            logger.warning("the last traces could not be exported within %.0f s", FLUSH_SECONDS)

    def _phases(self, request: Request, context: Context, epoch: int) -> None:
        """Make a span of each phase that the request has reached."""
        end = request.ended_at
        begins = (("queue", request.arrived_at), ("prefill", request.admitted_at), ("decode", request.first_token_at))
        begun = [(name, at) for name, at in begins if at is not None]
        ends = [*(at for _, at in begun[1:]), end]
        for (name, began_at), ended_at in zip(begun, ends, strict=True):
            assert ended_at is not None
            span = self._tracer.start_span(name, context=context, start_time=_at(began_at, epoch))
            span.end(_at(ended_at, epoch))

    def _links(self, request: Request) -> list[Link]:
        """Return links to the ended requests that this one has superseded."""
        with self._lock:
            superseded = self._superseded.pop(request.owner, request.id)
        return [Link(context, {"pyllmcancel.link": "superseded"}) for context in superseded or ()]

    def _note_superseded(self, request: Request, context: SpanContext) -> None:
        if request.superseded_by is None:
            return
        with self._lock:
            contexts = self._superseded.get(request.owner, request.superseded_by) or []
            self._superseded.put(request.owner, request.superseded_by, [*contexts, context][:MAX_LINKS])


class OneLineExporter(SpanExporter):
    """Logs once that nothing can be exported, and once that exports work again, unlike the SDK."""

    def __init__(self, exporter: SpanExporter) -> None:
        # Called by the batch processor's thread only.
        self._exporter = exporter
        self._failing = False
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            result = SpanExportResult.FAILURE
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning("traces cannot be exported: they are lost until the collector answers")
        elif self._failing and not failing:
            logger.info("traces are exported again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _resource() -> Resource:
    # The environment's name of the service wins; with Resource.create ours would win.
    ours = Resource.create({"service.name": "pyllmcancel", "service.version": __version__})
    return ours.merge(OTELResourceDetector().detect())


def _parent(request: Request) -> Context:
    """Return the context that the client's ``traceparent`` names; an empty one if it names none."""
    trace = request.trace
    if trace is None or trace.traceparent is None:
        return Context()
    carrier = {"traceparent": trace.traceparent}
    if trace.tracestate is not None:
        carrier["tracestate"] = trace.tracestate
    return TraceContextTextMapPropagator().extract(carrier, context=Context())


def _at(monotonic: float, epoch: int) -> int:
    return round(monotonic * 1e9) + epoch


def _attributes(request: Request, ending: Ending, operation: str) -> dict[str, AttributeValue]:
    """Return attributes named by the conventions for generative AI, where they have a word, and ours."""
    usage, trace = ending.usage, request.trace
    reasons = [str(choice.finish_reason or ending.finish_reason) for choice in request.choices]
    found: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "pyllmcancel",
        "gen_ai.response.id": request.id,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": reasons or [str(ending.finish_reason)],
        "pyllmcancel.request.id": request.id,
        "pyllmcancel.request.priority": request.priority,
    }
    if trace is not None:
        found |= {"http.request.method": "POST", "http.route": trace.path}
        found |= {"gen_ai.request.model": trace.model, "gen_ai.response.model": trace.model}
    if request.params.max_tokens is not None and operation not in ("embeddings", "rerank"):
        found["gen_ai.request.max_tokens"] = request.params.max_tokens
    if request.session is not None and not request.session.startswith("trace:"):
        found["gen_ai.conversation.id"] = request.session
    if request.first_token_at is not None:
        found["gen_ai.response.time_to_first_chunk"] = request.first_token_at - request.arrived_at
    if ending.finish_reason is FinishReason.ERROR:
        found["error.type"] = "engine_error"
    if ending.cancel_reason is not None:
        found |= _cancel_attributes(request, ending)
    return found


def _cancel_attributes(request: Request, ending: Ending) -> dict[str, AttributeValue]:
    assert ending.cancel_reason is not None
    assert ending.cancel_latency is not None
    found: dict[str, AttributeValue] = {
        "pyllmcancel.cancel.reason": str(ending.cancel_reason),
        "pyllmcancel.cancel.phase": str(ending.phase),
        "pyllmcancel.cancel.latency_ms": ending.cancel_latency * 1e3,
    }
    if request.superseded_by is not None:
        found["pyllmcancel.cancel.superseded_by"] = request.superseded_by
    return found
