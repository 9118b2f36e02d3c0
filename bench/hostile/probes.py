"""What the others see: how long each kind of request takes, on a connection of its own."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

LIMIT = 5.0  # seconds; who waits longer is not timed any further


class Visitor:
    """A well-behaved client. Every probe returns its seconds, LIMIT if there was no answer in that time."""

    def __init__(self, port: int) -> None:
        self._port = port

    def health(self) -> float:
        return self._timed(lambda: self._call("GET", "/health"))

    def completion(self) -> float:
        """Eight tokens after a prompt that is new to the server."""
        body = {"prompt": f"def f{time.monotonic_ns()}(): ", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        return self._timed(lambda: self._call("POST", "/v1/completions", body))

    def cancel(self) -> float:
        """From the cancel of a running stream to the answer, which comes when the computation has stopped."""
        request_id = f"cancelled-{time.monotonic_ns()}"
        body = {"prompt": "x", "max_tokens": 1500, "stream": True, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT)
        try:
            headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            connection.getresponse().read(1)
            return self._timed(lambda: self._call("POST", f"/v1/requests/{request_id}/cancel"))
        except (OSError, http.client.HTTPException):
            return LIMIT
        finally:
            connection.close()

    def _call(self, method: str, path: str, body: Any = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status != http.HTTPStatus.OK:
                raise ConnectionError(f"{path} was answered with {response.status}")
        finally:
            connection.close()

    @staticmethod
    def _timed(call: Callable[[], None]) -> float:
        began = time.monotonic()
        try:
            call()
        except (TimeoutError, OSError, http.client.HTTPException):
            return LIMIT
        return min(time.monotonic() - began, LIMIT)
