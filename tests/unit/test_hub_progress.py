"""The progress that is shown while a model is downloaded."""

import logging

import pytest

from pyllmcancel.hub import progress
from pyllmcancel.hub.progress import Progress


def test_there_are_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = Progress("user/model")
    with caplog.at_level(logging.INFO):
        lines.show(1_000_000_000, 4_000_000_000)  # what an earlier download left
        lines.show(1_000_000_001, 4_000_000_000)
        now[0] += 6
        lines.show(1_060_000_000, 4_000_000_000)
        now[0] += 6
        lines.show(1_060_000_000, 4_000_000_000)
    assert [record.message for record in caplog.records] == [
        "downloading user/model: 1.1 GB of 4.0 GB (26 %), 10.0 MB/s, 5 min left",
        "downloading user/model: 1.1 GB of 4.0 GB (26 %), 0 B/s",
    ]
