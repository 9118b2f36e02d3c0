"""Each decision of the abort policy is counted: aborted, aborted and redone for survivors, spared."""

import pytest

from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.server.running.metrics import EngineMetrics

DECISIONS = ("aborted", "redone", "spared")


def counted(*records: StepRecord) -> tuple[float, ...]:
    metrics = EngineMetrics()
    for record in records:
        metrics.step_done(record, 0)
    samples = [metrics.registry.get_sample_value(f"pyllmcancel_steps_{name}_total") for name in DECISIONS]
    return tuple(sample for sample in samples if sample is not None)


@pytest.mark.parametrize(
    ("status", "spared", "survivors", "expected"),
    [
        ("ok", False, 2, (0, 0, 0)),
        ("aborted", False, 0, (1, 0, 0)),
        ("aborted", False, 3, (1, 1, 0)),
        ("ok", True, 1, (0, 0, 1)),
        ("no_room", False, 2, (0, 0, 0)),
    ],
)
def test_steps_count_by_decision(status: str, spared: bool, survivors: int, expected: tuple[int, int, int]) -> None:
    assert counted(StepRecord(1, 0.0, 0.1, (), status, spared, survivors)) == expected
