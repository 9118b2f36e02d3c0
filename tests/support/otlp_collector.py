"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, and keeps the spans."""

import threading
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(AbstractContextManager["Collector"]):
    """Answers 200 to what it understands."""

    def __init__(self) -> None:
        collector = self
        # Both written by the threads that serve, before they answer.
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for found in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resources.append({one.key: one.value.string_value for one in found.resource.attributes})
                    collector.spans += [span for scope in found.scope_spans for span in scope.spans]
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
