"""The state after recorded events."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pyllmcancel.top.choices import Choices, Size, Times
from pyllmcancel.top.replicas import Replicas
from pyllmcancel.top.request import why_ended
from pyllmcancel.top.state import KEPT_EARLY, KEPT_LIVE, State
from pyllmcancel.top.values import read_json
from pyllmcancel.top.view import draw
from tests.top.events import (
    EPOCH,
    Fields,
    added,
    admitted,
    busy_server,
    cancelled,
    ended,
    entry,
    over,
    part,
    snapshot,
    stats,
    step,
)


def after(*events: Fields) -> State:
    state = State()
    for event in events:
        state.apply(event)
    assert state.not_understood == 0
    return state


def test_a_busy_server() -> None:
    state = after(*busy_server())
    assert (state.server.model, state.server.n_slots) == ("small-model", 4)
    assert [request.id for request in state.running()] == ["agent-main", "key-2"]
    assert [request.id for request in state.waiting()] == ["queued-0", "queued-1"]
    assert [why_ended(request) for request in state.ended] == [
        "finished",
        "cancelled: disconnect",
        "superseded by key-1",
        "superseded by key-2",
    ]
    assert state.latencies(EPOCH + 12) == [1.94, 3.1, 4.1]
    assert state.clock == EPOCH + 12


def test_progress_is_counted_from_steps_that_were_computed() -> None:
    state = after(
        snapshot(),
        added(entry("r", prompt_tokens=100)),
        admitted("r", 0.1, 0, cached=20),
        step(0.1, 0.2, part("r", 0, "prefill", 40)),
        step(0.2, 0.3, part("r", 0, "prefill", 40), status="aborted"),
    )
    (request,) = state.running()
    assert (request.phase, request.done, request.generated) == ("prefill", 60, 0)
    state.apply(step(0.3, 0.4, part("r", 0, "prefill", 40)))
    state.apply(step(0.4, 0.5, part("r", 0, "decode", 8) | {"n_drafted": 7, "n_accepted": 2}))
    assert (request.phase, request.done, request.generated) == ("decode", 100, 4)


def test_a_cancel_that_comes_before_its_request() -> None:
    state = after(snapshot(), cancelled("r", 0.1), added(entry("r")))
    (request,) = state.waiting()
    assert (request.status, request.cancel_reason) == ("cancelling", "explicit")


def test_cancels_of_requests_that_never_come_are_forgotten() -> None:
    state = after(snapshot(), *(cancelled(f"r-{i}", 0.1) for i in range(KEPT_EARLY + 5)))
    assert len(state._early) == KEPT_EARLY


def test_two_owners_requests_of_one_id_are_told_apart_by_their_slots() -> None:
    mine, theirs = entry("r", owner="me"), entry("r", owner="them")
    state = after(snapshot(), added(mine), added(theirs), admitted("r", 0.1, 0, owner="me"))
    state.apply(admitted("r", 0.1, 1, owner="them"))
    state.apply(step(0.1, 0.2, part("r", 1, "prefill", 50)))
    assert [(request.owner, request.done) for request in state.running()] == [("me", 0), ("them", 50)]


def test_a_restart_is_a_gap_and_ends_what_was_live() -> None:
    state = after(snapshot(), added(entry("r")), stats(5.0), snapshot(at=1.0, boot="b2", epoch=EPOCH + 10))
    assert not state.live
    gap = state.gaps[-1]
    assert (gap.began, gap.ended, gap.why) == (EPOCH + 5, EPOCH + 11, "the server has started again")


def test_a_snapshot_of_the_same_server_counts_no_cancel_twice() -> None:
    gone = over("r", 0.5, cancel_reason="explicit", cancel_latency_ms=2.0)
    late = over("s", 2.5, cancel_reason="explicit", cancel_latency_ms=3.0)
    # The clock was set in between.
    state = after(snapshot(), ended(gone), snapshot(gone, late, at=3.0, epoch=EPOCH + 0.7))
    assert state.latencies(state.clock) == [2.0, 3.0]
    assert state.gaps[-1].why == "too much was missed"


def test_old_cancels_leave_the_figure() -> None:
    gone = over("r", 1.0, cancel_reason="explicit", cancel_latency_ms=2.0)
    state = after(snapshot(), ended(gone))
    assert state.latencies(EPOCH + 300) == [2.0]
    assert state.latencies(EPOCH + 302) == []


def test_rates_count_the_part_of_a_step_that_is_in_the_last_seconds() -> None:
    state = after(snapshot(), step(0.0, 6.0, part("r", 0, "decode", 60)), step(6.0, 6.5, part("r", 0, "prefill", 30)))
    assert state.rates(EPOCH + 6.5) == pytest.approx({"decode": 25 / 3, "prefill": 10.0}, rel=1e-6)
    assert state.rates(EPOCH + 60) == {"decode": 0.0, "prefill": 0.0}


BROKEN = [{"type": "step", "at": "now"}, {"type": "added", "request": {"id": 1}}, {"type": "snapshot"}]


@pytest.mark.parametrize("data", [None, [], "x", {}, *BROKEN])
def test_what_is_not_understood_is_counted_and_changes_nothing(data: object) -> None:
    state = after(snapshot(entry("r")))
    state.apply(data)
    assert state.not_understood == 1
    assert [request.id for request in state.live.values()] == ["r"]


def test_types_of_later_versions_are_passed_over() -> None:
    assert after({"type": "weather", "at": "sunny"}).not_understood == 0


def test_requests_that_never_end_are_forgotten() -> None:
    state = after(snapshot(), *(added(entry(f"r-{i}")) for i in range(KEPT_LIVE + 5)))
    assert len(state.live) == KEPT_LIVE


NO_NUMBERS = [float("inf"), float("-inf"), float("nan"), 10**400, -(10**400), 1e300]


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_no_number_of_a_server_breaks_the_picture(number: float) -> None:
    events = (
        snapshot(entry("r", slots=[0]), stats={"waiting": 1, "slots_used": 1, "cells_used": 1, "wasted_tokens": 1}),
        added(entry("s", times={"arrived": 0.0})),
        admitted("s", 0.1, 1),
        step(0.2, 0.3, part("s", 1, "decode", 3)),
        ended(over("s", 0.5, cancel_reason="explicit", cancel_latency_ms=2.0)),
        stats(0.6),
    )
    for text in map(json.dumps, events):
        for hostile in each_number_replaced(json.loads(text), number):
            state = after(*events)
            state.apply(read_json(json.dumps(hostile)))
            times = Times(state.clock, state.clock)
            assert len(draw(Replicas([state]), Choices(), times, Size(80, 24))) == 24


def each_number_replaced(value: object, by: float) -> Iterator[object]:
    """Copies of JSON in which one number is another."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from (value | {name: other} for other in each_number_replaced(inner, by))
        case list():
            for i, inner in enumerate(value):
                yield from ([*value[:i], other, *value[i + 1 :]] for other in each_number_replaced(inner, by))
        case int() | float():
            yield by
