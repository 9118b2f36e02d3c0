"""The engine with steps that begin before the last one's results are taken: for its requests nothing changes."""

from typing import Any

import pytest

from pyllmcancel.engine.steps import is_mostly_offloaded
from pyllmcancel.events import FinishReason, RequestStatus
from tests.support import fake_native
from tests.support.driver import Driver, MakeDriver, Tracked
from tests.support.step_gate import N_POLLS
from tests.unit.test_generation_params import Spelling


@pytest.fixture
def ahead(make_driver: MakeDriver) -> Driver:
    return make_driver(steps_ahead=True, parallel=3)


def decoding(driver: Driver, count: int, **options: Any) -> list[Tracked]:
    """Requests that all decode; the step that is held has begun by itself."""
    made = [driver.submit(f"request {number}", **{"max_tokens": 40} | options) for number in range(count)]
    driver.step_until(lambda: all(len(tracked.sink.tokens()) >= 2 for tracked in made))
    n_ahead = driver.context.n_ahead
    driver.step()
    assert driver.context.n_ahead == n_ahead + 1
    return made


def sequences_of(driver: Driver, tracked: Tracked) -> int:
    return sum(entry[0] == tracked.request.id for record in driver.watcher.steps for entry in record.sequences)


def test_while_nothing_changes_each_step_begins_by_itself(ahead: Driver) -> None:
    decoding(ahead, 2)
    n_ahead, n_steps = ahead.context.n_ahead, len(ahead.watcher.steps)
    ahead.step(10)
    assert ahead.context.n_ahead - n_ahead == len(ahead.watcher.steps) - n_steps == 10
    ahead.run_to_the_end()


def test_steps_and_tokens_are_those_of_an_engine_that_does_not_run_ahead(make_driver: MakeDriver) -> None:
    records = []
    for steps_ahead in (False, True):
        driver = make_driver(steps_ahead=steps_ahead, parallel=3)
        for number in range(5):
            driver.submit(f"request {number}", request_id=f"r{number}", max_tokens=3 + 4 * number)
        driver.run_to_the_end()
        assert (driver.context.n_ahead > 0) is steps_ahead
        records.append([(record.status, record.sequences) for record in driver.watcher.steps])
    assert records[0] == records[1]


def test_a_cancel_aborts_the_step_ahead_of_a_request_that_is_alone(ahead: Driver) -> None:
    (tracked,) = decoding(ahead, 1)
    n_tokens = len(tracked.sink.tokens())
    ahead.cancel(tracked)
    assert ahead.watcher.steps[-1].status == "aborted"
    assert tracked.ending.finish_reason is FinishReason.CANCELLED
    assert len(tracked.sink.tokens()) == n_tokens


def test_for_a_client_that_leaves_while_its_step_computes_one_more_is_begun_at_most(ahead: Driver) -> None:
    leaver, _ = decoding(ahead, 2)
    leaver.client.left = True
    n_tokens, n_computed = len(leaver.sink.tokens()), sequences_of(ahead, leaver)
    ahead.step(3)
    assert leaver.ended
    assert sequences_of(ahead, leaver) <= n_computed + 2  # the one that was held, and the one that followed it
    assert len(leaver.sink.tokens()) <= n_tokens + 1


def test_a_newcomer_is_admitted_after_the_step_in_which_it_arrives(ahead: Driver) -> None:
    decoding(ahead, 2)
    newcomer = ahead.submit("newcomer")
    assert newcomer.request.status is RequestStatus.WAITING
    ahead.step()
    assert newcomer.request.status is RequestStatus.PREFILL


def test_one_that_cannot_be_admitted_stops_no_step(make_driver: MakeDriver) -> None:
    driver = make_driver(steps_ahead=True, parallel=1)
    decoding(driver, 1)
    driver.submit("waits")
    driver.step(2)
    n_ahead = driver.context.n_ahead
    driver.step(5)
    assert driver.context.n_ahead == n_ahead + 5


def test_beside_a_prompt_no_step_runs_ahead(ahead: Driver) -> None:
    decoding(ahead, 1)
    newcomer = ahead.submit([7] * 60)
    ahead.step()
    n_ahead = ahead.context.n_ahead
    ahead.step_until(lambda: bool(newcomer.request.choices[0].generated))
    assert ahead.context.n_ahead == n_ahead


def test_what_a_constraint_decides_is_not_computed_ahead(ahead: Driver) -> None:
    ahead.answered("question", constraint=Spelling(b"abc"), max_tokens=3, expected=b"abc")
    assert ahead.context.n_ahead == 0


def test_a_prefix_that_is_due_to_be_swapped_out_is_while_steps_run_ahead(ahead: Driver) -> None:
    ahead.answered([1] * 20, max_tokens=1)
    tracked = ahead.submit([2] * 20, max_tokens=40)
    ahead.step_until(lambda: ahead.engine.occupancy().swapped_bytes > 0)
    assert len(tracked.sink.tokens()) < 15
    n_ahead = ahead.context.n_ahead
    ahead.step(9)
    assert ahead.context.n_ahead == n_ahead + 9, "there is nothing left to do between steps"


def test_a_trap_is_sprung_in_the_step_that_it_was_set_for(ahead: Driver) -> None:
    (tracked,) = decoding(ahead, 1)
    ahead.context.raise_at(N_POLLS // 2, tracked.request.cancellation.flag, n_later=1)
    ahead.engine.cancel(tracked.request)
    ahead.settle()
    assert tracked.ended


@pytest.mark.parametrize(
    ("config", "runs"),
    [({}, False), ({"gpu": True}, True), ({"steps_ahead": True}, True), ({"steps_ahead": False}, False)],
)
def test_steps_run_ahead_where_a_gpu_would_wait(make_driver: MakeDriver, config: dict[str, Any], *, runs: bool) -> None:
    driver = make_driver(**config)
    driver.answered(max_tokens=10)
    assert (driver.context.n_ahead > 0) is runs


@pytest.mark.parametrize(("layers", "runs"), [({"CPU": 20, "Fake0": 9}, False), ({"CPU": 9, "Fake0": 20}, True)])
def test_steps_run_ahead_where_most_layers_are_a_gpus(layers: dict[str, int], *, runs: bool) -> None:
    model = fake_native.Model(gpu=True)
    model.layers_by_device = layers
    assert is_mostly_offloaded(model) is runs
