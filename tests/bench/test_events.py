"""The readers of the feed's benchmark, and its table."""

from __future__ import annotations

from typing import Any

import pytest

from bench.events import loop_seconds, readers, table
from tests.http.conftest import long_model
from tests.support.http_process import ServerProcess

__all__ = ["long_model"]


def figures(turn: int, count: int, speed: float) -> dict[str, Any]:
    shares = {"server_cores": 2.0, "loop_percent": 1.0, "readers_percent": 0.5}
    return {"round": turn, "readers": count, "tokens_per_second": speed} | shares


def test_the_table_compares_each_turn_with_the_one_without_readers() -> None:
    found = [figures(0, 0, 100.0), figures(0, 9, 99.0), figures(1, 0, 50.0), figures(1, 9, 48.0)]
    *_, alone, busy = table(found).splitlines()
    assert [cell.strip() for cell in alone.strip("|").split("|")][:3] == ["0", "75", "1.000"]
    assert [cell.strip() for cell in busy.strip("|").split("|")][:3] == ["9", "74", "0.975"]


@pytest.mark.long
def test_each_reader_has_its_snapshot_before_anything_is_measured(long_model: Any) -> None:
    with ServerProcess("--model", str(long_model), "--ctx-size", "512") as process:
        server = process.started()
        with readers(server.port, 3) as reading:
            assert reading is not None
            assert reading.poll() is None
            assert loop_seconds(reading.pid) > 0.0
        server.signal()
        server.wait()
