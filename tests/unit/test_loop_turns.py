"""The order of things in a turn of the loop, which the guarantees about cancels rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.loop import EngineLoop
from pyllmcancel.events import Delta, Event, FinishReason
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import Observer, StepTrace
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request
from pyllmcancel.scheduling.scheduler import Occupancy
from pyllmcancel.scheduling.step_cost import StepCostModel
from pyllmcancel.scheduling.workload import Finished, Progress, StepMember, Update
from pyllmcancel.step import StepItem, StepResult, StepRow, StepStatus
from tests.support.bare_requests import bare_request
from tests.support.fake_model import CancelFlag


def noted(name: str) -> Callable[..., list[Update]]:
    """A method that leaves its name in `calls`."""

    def call(self: Recorder, *_: object, **__: object) -> list[Update]:
        self.calls.append(name)
        return []

    return call


class Recorder:
    """A workload with its scheduler, and a watcher: each call leaves its name in `calls`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.cost = StepCostModel()
        self.n_preempted = 0
        self.running: list[Request] = []
        self.results: list[Update] = []
        self.ended_by_plan: list[Update] = []
        self.has_room = True
        self.at_looks: list[Callable[[], object]] = []  # what happens at the next ones
        self.ahead: list[StepItem] = []
        self.goes_ahead = False  # whether a step begins by itself, after those that have leave to go on too
        self.is_steady_now = True
        self.late: StepResult | None = None
        self.beside_step: Callable[[], object] = lambda: None  # what happens while a step computes

    resync, expire, pause, give_way, maintain, allow_ahead = map(
        noted, ("resync", "expire", "pause", "give way", "maintain", "allow_ahead")
    )

    @property
    def scheduler(self) -> Recorder:
        return self

    core = steps = scheduler

    def occupancy(self) -> Occupancy:
        return Occupancy(len(self.running))

    def look(self, _requests: Iterable[Request]) -> None:
        self.calls.append("look")
        if self.at_looks:
            self.at_looks.pop(0)()

    new_flag = CancelFlag

    def choose(self, heads: Sequence[Request]) -> Request | None:
        return heads[0] if self.has_room else None

    def start(self, request: Request, _observer: object) -> list[Update]:
        self.calls.append(f"start {request.id}")
        self.running.append(request)
        return []

    def plan(self, _observer: object) -> tuple[list[StepItem], list[Update]]:
        self.calls.append("plan")
        return [StepItem(seq, 1) for seq, _ in enumerate(self.running)], self.ended_by_plan

    def member(self, item: StepItem) -> StepMember:
        return StepMember(self.running[item.seq], 0, "decode")

    def compute(self, items: list[StepItem]) -> StepResult:
        self.calls.append("compute")
        self.beside_step()
        return self._result(items, goes_on=True)

    def _result(self, items: list[StepItem], *, goes_on: bool) -> StepResult:
        self.ahead = items if goes_on and self.goes_ahead else []
        return StepResult(StepStatus.OK, [StepRow(item.seq, item.n_tokens) for item in items], False, 1, 1, 1)

    def is_steady(self, _requests: Iterable[Request]) -> bool:
        return self.is_steady_now

    def collect(self, *, goes_on: bool) -> StepResult:
        self.calls.append("collect and go on" if goes_on else "collect")
        return self._result(self.ahead, goes_on=goes_on)

    def take_late(self) -> StepResult | None:
        late, self.late = self.late, None
        return late

    def take(self, _rows: Sequence[Any], _observer: object) -> list[Update]:
        self.calls.append("take")
        return self.results

    def release(self, request: Request, *, keep: bool) -> None:
        self.calls.append(f"release {request.id}")
        self.running.remove(request)


class Told:
    """A reader in an event loop that has time at once: what it is told goes among the calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    @property
    def loop(self) -> Any:
        return self

    full = False

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        callback(*arguments)

    def put(self, event: Event) -> None:
        self._calls.append(f"{self._name} is told {event.finish_reason or event.text}")


class Rig:
    def __init__(self) -> None:
        self.recorder = Recorder()
        self.registry = Registry(max_queue=8)
        self.endings = Endings(self.registry, Observer())
        parts = (self.recorder, self.registry, self.endings, self.recorder)
        self.loop = EngineLoop(*parts, observer=Observer(), trace=StepTrace(8))  # type: ignore[arg-type]

    def submit(self, name: str, **origin: str) -> Request:
        request = bare_request(name, **origin)
        request.sink = Told(name, self.recorder.calls)
        self.registry.accept(request)
        return request

    def turn(self) -> list[str]:
        self.recorder.calls.clear()
        self.loop.turn()
        return list(self.recorder.calls)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_turn_starts_plans_looks_and_computes(rig: Rig) -> None:
    request = rig.submit("a")
    rig.recorder.results = [Progress(request, Delta(0, "x"))]
    begin, step = ["allow_ahead", "look", "expire", "pause"], ["plan", "maintain", "look", "compute", "take"]
    assert rig.turn() == [*begin, "look", "start a", *step]
    assert rig.turn() == [*begin, "a is told x", *step]


def test_a_cancelled_request_is_told_before_others_start(rig: Rig) -> None:
    leaver = rig.submit("leaver")
    rig.turn()
    rig.submit("newcomer")
    rig.endings.cancel(leaver, CancelReason.EXPLICIT)
    assert rig.turn()[1:8] == [
        *("look", "release leaver", "expire", "pause", "leaver is told cancelled", "look", "start newcomer")
    ]


def test_a_waiting_request_that_is_cancelled_needs_no_room_to_end(rig: Rig) -> None:
    rig.recorder.has_room = False
    waits, leaver = rig.submit("waits", owner="a"), rig.submit("leaver", owner="b")
    # Its canceller has not withdrawn it yet.
    leaver.cancellation.request(CancelReason.EXPLICIT)
    rig.turn()
    rig.turn()
    assert (waits.live, leaver.ended.done()) == (True, True)


def test_what_ends_in_planning_is_told_before_the_step(rig: Rig) -> None:
    stays, fails = rig.submit("stays"), rig.submit("fails")
    rig.turn()
    rig.recorder.running.remove(fails)
    rig.recorder.ended_by_plan = [Finished(fails, FinishReason.ERROR, error="of the test")]
    calls = rig.turn()
    assert calls[calls.index("plan") :] == ["plan", "fails is told error", "maintain", "look", "compute", "take"]
    assert stays.live


def test_no_step_begins_with_a_client_that_left_while_it_was_planned(rig: Rig) -> None:
    leaver = rig.submit("leaver")
    rig.turn()
    rig.recorder.at_looks = [lambda: None, lambda: rig.endings.cancel(leaver, CancelReason.DISCONNECT)]
    assert rig.turn() == ["allow_ahead", "look", "expire", "pause", "plan", "maintain", "look", "resync"]
    assert rig.turn()[1:] == ["look", "release leaver", "expire", "pause", "leaver is told cancelled", "plan"]


def test_one_that_was_cancelled_between_the_queue_and_its_slot_never_gets_one(rig: Rig) -> None:
    request = rig.submit("a")
    rig.recorder.at_looks = [lambda: None, lambda: rig.endings.cancel(request, CancelReason.DISCONNECT)]
    assert rig.turn() == ["allow_ahead", "look", "expire", "pause", "look", "plan", "a is told cancelled"]
    assert request.admitted_at is None


def test_a_turn_beside_a_step_publishes_looks_and_waits_for_it(rig: Rig) -> None:
    request = rig.submit("a")
    rig.recorder.goes_ahead = True
    rig.recorder.results = [Progress(request, Delta(0, "x"))]
    rig.turn()
    assert rig.turn() == ["a is told x", "look", "collect and go on", "take"]
    rig.recorder.is_steady_now = False
    assert rig.turn() == ["a is told x", "look", "collect", "take"]
    assert rig.turn()[0] == "allow_ahead"


def test_none_follows_the_step_ahead_of_a_client_that_has_left(rig: Rig) -> None:
    leaver = rig.submit("leaver")
    rig.recorder.goes_ahead = True
    rig.turn()
    rig.recorder.at_looks = [lambda: rig.endings.cancel(leaver, CancelReason.DISCONNECT)]
    assert rig.turn() == ["look", "collect", "take"]
    assert rig.turn()[:3] == ["allow_ahead", "look", "release leaver"]


def test_a_step_that_runs_ahead_has_begun(rig: Rig) -> None:
    rig.submit("a")
    rig.turn()
    assert rig.loop.stalled_for() == 0.0
    rig.recorder.goes_ahead = True
    rig.turn()
    assert rig.loop.stalled_for() > 0.0


def test_occupancy_counts_the_cells_of_steps_ahead(rig: Rig) -> None:
    rig.submit("a")
    rig.recorder.goes_ahead = True
    rig.turn()
    rig.turn()
    assert rig.loop.occupancy.cells == 2
