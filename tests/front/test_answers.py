"""An answer on its way to a client whose connection has failed."""

from __future__ import annotations

from typing import Any

import pytest

from pyllmcancel.front.forwarding import Answer


class FailedConnection:
    is_closing = True


@pytest.mark.anyio
async def test_nothing_is_written_to_a_connection_that_has_failed() -> None:
    """Asyncio would warn of it after some pieces."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    answer = Answer({"state": {"connection": FailedConnection()}, "http_version": "1.1"}, send)
    await answer.begin(200, [])
    for _ in range(10):
        await answer.write(b"piece")
    assert sent == ["http.response.start"]
