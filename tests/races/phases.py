"""Every phase that a cancel can meet a request in. Each brings a driver there, and says how to let it go on.

A neighbour decodes in the same engine all the while. In the first two phases it has the only slot.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from pyllmcancel.events import RequestStatus
from pyllmcancel.requests.request import Request
from tests.support.driver import CHUNK, Driver, RecordingSink, Stop, Tracked, Watcher
from tests.support.step_gate import TEST_LIMIT

LONG = "a long prompt, which takes several steps. " * 3
SHORT = "short prompt"
SESSION = "the session"
KEY = "the key"


@dataclass(slots=True)
class Case:
    """A request in the phase to be tested."""

    request: Request
    tracked: Tracked
    release: Callable[[], Any]  # lets the engine go on from where the phase has stopped it
    in_time: bool = True  # a cancel can still win here

    @classmethod
    def of(cls, tracked: Tracked) -> Self:
        return cls(tracked.request, tracked, lambda: None)


def late(driver: Driver, tracked: Tracked) -> Case:
    """So late in the held step that the abort policy spares it for the neighbour."""
    driver.gate.move_on(0.99)
    return Case(tracked.request, tracked, driver.gate.let_through)


def target(driver: Driver, prompt: str, *, settle: bool = True, **options: Any) -> Tracked:
    return driver.submit(prompt, session=SESSION, supersede=KEY, stream=True, settle=settle, **options)


def stopped(driver: Driver, tracked: Tracked, caller: RecordingSink | Watcher, place: str) -> Case:
    """Let the held step finish; the engine's thread stops where it calls `place`."""
    stop = Stop()
    setattr(caller, place, stop.here)
    driver.gate.let_through()
    stop.wait_reached()
    return Case(tracked.request, tracked, stop.go_on)


def before_submit_returns(driver: Driver, n: int) -> Case:
    """Accepted; the thread that submits has not come back."""
    stop = Stop()
    seen: list[Request] = []
    returned: list[Tracked] = []

    def on_added(request: Request) -> None:
        driver.watcher.on_added = lambda _: None
        seen.append(request)
        stop.here()

    driver.watcher.on_added = on_added
    submitter = threading.Thread(target=lambda: returned.append(target(driver, SHORT, settle=False, n=n)))
    submitter.start()
    stop.wait_reached()
    case = Case(seen[0], driver.tracked[0], lambda: None)

    def release() -> None:
        stop.go_on()
        submitter.join(TEST_LIMIT)
        case.tracked = returned[0]

    case.release = release
    return case


def waiting(driver: Driver, n: int) -> Case:
    """In the queue, behind the neighbour."""
    tracked = target(driver, SHORT, n=n)
    assert tracked.request.status is RequestStatus.WAITING
    return Case.of(tracked)


def admitted_but_not_begun(driver: Driver, n: int) -> Case:
    """Out of the queue, being given its slot; no step holds it yet."""
    stop = Stop()
    driver.context.before_open = lambda tokens: stop.here() if bytes(tokens) == SHORT.encode() else None
    tracked = target(driver, SHORT, n=n)
    driver.gate.let_through()
    stop.wait_reached()
    return Case(tracked.request, tracked, stop.go_on)


def prefilling(driver: Driver, n: int) -> Tracked:
    tracked = target(driver, LONG, n=n)
    driver.step_until(lambda: tracked.request.choices[0].n_committed >= CHUNK and driver.holds(tracked))
    assert tracked.request.status is RequestStatus.PREFILL
    return tracked


def early_in_prefill(driver: Driver, n: int) -> Case:
    """Inside a step, so early that the abort policy stops it for all."""
    return Case.of(prefilling(driver, n))


def late_in_prefill(driver: Driver, n: int) -> Case:
    """Inside a step, so late that the abort policy spares it for the neighbour."""
    return late(driver, prefilling(driver, n))


def between_chunks(driver: Driver, n: int) -> Case:
    """A chunk of the prompt is computed, the next step not planned."""
    return stopped(driver, prefilling(driver, n), driver.watcher, "on_step_done")


def decoding(driver: Driver, n: int, max_tokens: int = 20) -> Tracked:
    tracked = target(driver, SHORT, n=n, max_tokens=max_tokens)
    driver.step_until(lambda: len(tracked.sink.tokens(n - 1)) >= 2 and driver.holds(tracked))
    assert tracked.request.status is RequestStatus.DECODE
    return tracked


def early_in_decode(driver: Driver, n: int) -> Case:
    return Case.of(decoding(driver, n))


def late_in_decode(driver: Driver, n: int) -> Case:
    return late(driver, decoding(driver, n))


def between_steps(driver: Driver, n: int) -> Case:
    """A token is being handed out."""
    tracked = decoding(driver, n)
    return stopped(driver, tracked, tracked.sink, "on_event")


def paused(driver: Driver, n: int) -> Case:
    """Its reader leaves too much unread; the step that is held is the neighbour's."""
    tracked = decoding(driver, n)
    driver.stop_reading(tracked)
    driver.step_until(lambda: tracked.request.paused)
    return Case(tracked.request, tracked, driver.gate.let_through)


def finishing(driver: Driver, n: int) -> Tracked:
    tracked = target(driver, SHORT, n=n, max_tokens=3)

    def last_step() -> bool:
        left = [choice for choice in tracked.request.choices if choice.finish_reason is None]
        return driver.holds(tracked) and all(len(choice.generated) == 2 and choice.n_pending == 1 for choice in left)

    driver.step_until(last_step)
    return tracked


def in_the_step_that_finishes(driver: Driver, n: int) -> Case:
    """Inside the step whose token is the last; the policy spares it for the neighbour."""
    return late(driver, finishing(driver, n))


def after_the_last_token(driver: Driver, n: int) -> Case:
    """The last token is computed, and the request not yet concluded."""
    return stopped(driver, finishing(driver, n), driver.watcher, "on_step_done")


def while_told_of_the_end(driver: Driver, n: int) -> Case:
    """Too late by a moment: concluded, but `ended` is not resolved."""
    tracked = finishing(driver, n)
    return replace(stopped(driver, tracked, tracked.sink, "on_event"), in_time=False)


def after_the_end(driver: Driver, n: int) -> Case:
    tracked = finishing(driver, n)
    driver.step()
    assert tracked.ended
    return replace(Case.of(tracked), in_time=False)


Phase = Callable[[Driver, int], Case]

IN_THE_QUEUE: tuple[Phase, ...] = (before_submit_returns, waiting)
IN_PREFILL: tuple[Phase, ...] = (admitted_but_not_begun, early_in_prefill, late_in_prefill, between_chunks)
IN_DECODE: tuple[Phase, ...] = (early_in_decode, late_in_decode, between_steps, paused)
AT_THE_END: tuple[Phase, ...] = (in_the_step_that_finishes, after_the_last_token, while_told_of_the_end, after_the_end)
IN_A_SLOT = (*IN_PREFILL, *IN_DECODE, *AT_THE_END)
