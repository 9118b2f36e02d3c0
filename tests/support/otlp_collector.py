"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, and keeps the spans."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.stub_server import Handler, StubServer


class Collector(StubServer):
    """Answers 200 to what it understands."""

    def __init__(self) -> None:
        # Both written by the threads that serve, before they answer.
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        super().__init__(Spans)


class Spans(Handler):
    server: Collector

    def do_POST(self) -> None:  # noqa: N802 - named by the library
        for found in ExportTraceServiceRequest.FromString(self.body()).resource_spans:
            self.server.resources.append({one.key: one.value.string_value for one in found.resource.attributes})
            self.server.spans += [span for scope in found.scope_spans for span in scope.spans]
        self.reply(200 if self.path == "/v1/traces" else 404)
