"""How many compute threads there are when no number is configured."""

import os
from math import inf
from pathlib import Path

import pytest

from pyllmcancel import config
from pyllmcancel.config import core_quota, default_threads

VERSION_1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, inf),
        (dict(zip(VERSION_1, ("400000\n", "100000\n"), strict=True)), 4.0),
        (dict(zip(VERSION_1, ("-1\n", "100000\n"), strict=True)), inf),
        ({"cpu.max": "nonsense\n"}, inf),
        ({}, inf),
    ],
    ids=["version 2", "version 2, none", "version 1", "version 1, none", "not a number", "no control groups"],
)
def test_the_control_groups_quota_is_read(files: dict[str, str], expected: float, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert core_quota(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.9, 1), (2.0, 2), (64.0, 4), (inf, 4)])
def test_threads_are_at_most_the_quotas_cores(quota: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(config, "core_quota", lambda: quota)
    assert default_threads() == expected
