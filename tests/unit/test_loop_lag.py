"""How late the event loop is, and what is counted of the engine's steps."""

import asyncio
import time

import pytest

from pyllmcancel.requests.observer import StepPart, StepRecord
from pyllmcancel.server.running.metrics import EngineMetrics, LoopLag

pytestmark = pytest.mark.anyio
HELD = 0.05


async def test_what_holds_the_loop_up_is_seen_by_the_next_appointment() -> None:
    lags: list[float] = []
    told = asyncio.Event()

    def observe(seconds: float) -> None:
        lags.append(seconds)
        told.set()

    lag = LoopLag(observe, every=0.001)
    lag.start()
    time.sleep(HELD)  # noqa: ASYNC251 - the very thing that is to be seen
    await told.wait()
    lag.stop()
    lag.stop()
    assert lags[0] >= HELD - 0.001


def step(
    number: int, started_at: float, *names: str, status: str = "ok", spared: bool = False, n_survivors: int = 0
) -> StepRecord:
    parts = tuple(StepPart(name, 0, "decode", 1, 0) for name in names)
    return StepRecord(number, started_at, 1.0, parts, status, spared, n_survivors)


def test_an_engines_turn_is_clocked_between_two_steps_of_one_request() -> None:
    metrics = EngineMetrics()
    metrics.step_done(step(1, 0.0, "a"), 0)
    metrics.step_done(step(2, 1.5, "a", "b"), 0)
    metrics.step_done(step(3, 9.0, "c"), 0)  # no request was in both: there may have been nothing to do
    text = metrics.exposition().decode()
    assert "pyllmcancel_engine_turn_seconds_count 1.0" in text
    assert "pyllmcancel_engine_turn_seconds_sum 0.5" in text


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
def test_aborted_redone_and_spared_steps_are_counted(
    status: str, spared: bool, survivors: int, expected: tuple[int, int, int]
) -> None:
    metrics = EngineMetrics()
    metrics.step_done(step(1, 0.0, status=status, spared=spared, n_survivors=survivors), 0)
    names = [f"pyllmcancel_steps_{name}_total" for name in ("aborted", "redone", "spared")]
    assert tuple(map(metrics.registry.get_sample_value, names)) == expected
