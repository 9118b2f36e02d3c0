"""The progress that is shown while a model is downloaded."""

from __future__ import annotations

import logging

import pytest

from pyllmcancel.hub import progress
from pyllmcancel.hub.progress import Progress, in_time, in_units


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


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5_200_000, "5.2 MB"), (4_700_000_000_000, "4700.0 GB")],
)
def test_sizes(size: int, text: str) -> None:
    assert in_units(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2.0 h")])
def test_times(seconds: float, text: str) -> None:
    assert in_time(seconds) == text
