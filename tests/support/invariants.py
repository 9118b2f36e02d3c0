"""DESIGN's invariants, as checks on a `Driver` in a quiet moment."""

from collections import Counter

from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.requests.waiting_queue import queue_of
from tests.support.driver import Driver, Tracked, complete


def check_invariants(driver: Driver) -> None:
    """Everything that holds between any two events."""
    assert driver.engine.failure is None
    for tracked in driver.tracked:
        for check in (check_one_ending, check_targeting, check_sticky):
            check(tracked)
        check_no_work_after_end(driver, tracked)
    for check in (check_keys, check_sessions, check_owners, check_slots_and_cells, check_paused, check_idle):
        check(driver)


def check_paused(driver: Driver) -> None:
    """A paused request has no slot. No other one is stuck but in the queue, by an owner's limit."""
    for request in driver.engine.registry.requests():
        if request.paused:
            assert all(choice.seq is None for choice in request.choices)
        elif driver.gate.held() is None:
            most = driver.config.max_running
            assert request.status is RequestStatus.WAITING, f"{request.id} is neither computed nor paused"
            assert most is not None, f"{request.id} waits for nothing"
            _, n_running = counts_of_queue(driver, *queue_of(request))
            others = [one for one in driver.engine.registry.requests() if not one.is_idle]
            assert n_running == most or (request.is_idle and others)


def check_one_ending(tracked: Tracked) -> None:
    endings = tracked.sink.endings
    assert len(endings) == int(tracked.ended), f"{tracked.request.id}: {len(endings)} endings"
    if endings:
        assert tracked.sink.record[-1] is endings[0], "events after the ending"
        assert tracked.ending == endings[0]
        assert tracked.request.status is RequestStatus.FINISHED


def check_targeting(tracked: Tracked) -> None:
    """A request neither cancelled nor made to fail gets what it would have got alone; the others get a part of it."""
    for index in range(len(tracked.request.choices)):
        delivered = tracked.sink.tokens(index)
        assert delivered == tracked.expected[: len(delivered)], f"{tracked.request.id}: foreign tokens"
        assert not complete(tracked) or delivered == tracked.expected
    if tracked.ended and not complete(tracked):
        ending = tracked.ending
        if ending.finish_reason is FinishReason.ERROR:
            assert tracked.fails, f"{tracked.request.id} failed for another's sake: {ending.error}"
        else:
            assert tracked.request.cancellation.requested, "ended as cancelled without a cancel"


def check_sticky(tracked: Tracked) -> None:
    """A cancel is never lost, and the first reason wins."""
    cancellation = tracked.request.cancellation
    assert cancellation.flag.is_set() == cancellation.requested
    if tracked.ended and cancellation.requested and not tracked.fails:
        assert tracked.ending.finish_reason is FinishReason.CANCELLED
        assert tracked.ending.cancel_reason is cancellation.reason
        assert tracked.ending.cancel_latency is not None


def check_no_work_after_end(driver: Driver, tracked: Tracked) -> None:
    if tracked.n_steps_at_end is None:
        return
    # Two owners may use the same id.
    reused = sum(other.request.id == tracked.request.id for other in driver.tracked) > 1
    for record in driver.watcher.steps[tracked.n_steps_at_end :]:
        assert reused or all(entry[0] != tracked.request.id for entry in record.sequences), "computed after the end"
    assert not driver.holds(tracked), "about to be computed after the end"
    if driver.gate.held() is None:  # a step that does not compute it may have been running when it was cancelled
        assert all(choice.seq is None for choice in tracked.request.choices), "holds a slot after the end"
    assert tracked.request not in driver.engine.registry.requests()


def check_keys(driver: Driver) -> None:
    """One live request per owner's supersede key, and it is the one that the table names."""
    requests = driver.engine.registry.requests()
    keys = [(one.supersede, one.owner) for one in requests if one.supersede is not None and one.live]
    assert len(keys) == len(set(keys)), f"keys with several live requests: {Counter(keys)}"
    for key, owner in keys:
        newest = driver.engine.registry.newest(key, owner)
        assert newest is not None
        assert newest.live


def check_sessions(driver: Driver) -> None:
    """A session lists exactly its requests that have not ended."""
    registry = driver.engine.registry
    members = {(request.owner, request.session) for request in registry.requests() if request.session is not None}
    for owner, session in members:
        found = registry.session(session, owner)
        assert found is not None
        assert found.requests == [request.id for request in registry.requests(owner) if request.session == session]
    assert driver.engine.counts().sessions == len(members)


def check_owners(driver: Driver) -> None:
    """Check that no owner has more running or waiting requests than its limits."""
    most = driver.config.max_running
    requests = driver.engine.registry.requests()
    for queue in {queue_of(request) for request in requests}:
        n_waiting, n_running = counts_of_queue(driver, *queue)
        assert n_waiting <= driver.config.max_queue
        assert most is None or n_running <= most


def counts_of_queue(driver: Driver, owner: str, is_idle: bool) -> tuple[int, int]:
    """Return how many requests wait and run, of an owner's idle ones or of the owner's others."""
    live = [one for one in driver.engine.registry.requests(owner) if one.is_idle == is_idle and one.live]
    n_waiting = sum(one.status is RequestStatus.WAITING for one in live)
    return n_waiting, len(live) - n_waiting


def check_idle(driver: Driver) -> None:
    """Idle requests compute alone, and not while others could."""
    held = driver.gate.held()
    if held is None:
        return
    live = [one.request for one in driver.tracked if not one.ended]
    computed = [one for one in live if one.cancellation.flag in held.flags]
    if any(one.is_idle for one in computed):
        assert all(one.is_idle for one in computed)
        assert not [one for one in live if not (one.is_idle or one.paused or one.cancellation.requested)]


def check_slots_and_cells(driver: Driver) -> None:
    """Slots are held by requests that have not ended; each cell has an owner, or is free."""
    choices = [choice for tracked in driver.tracked for choice in tracked.request.choices]
    running = {choice.seq: choice for choice in choices if choice.seq is not None}
    assert driver.context.open_seqs == sorted(running)
    assert len(running) <= driver.config.parallel
    # A choice that ends waits for the step ahead before it gives its slot back: other rows of its step are taken then.
    may_lag = any(choice.finish_reason is not None for choice in running.values())
    for seq, choice in running.items():
        n_untaken = driver.context.n_committed(seq) - choice.n_committed
        assert n_untaken == 0 or (n_untaken == 1 and may_lag and driver.config.steps_ahead)
        known, tokens = [*choice.prompt, *choice.generated], driver.context.tokens(seq)
        assert (tokens[: len(known)], len(tokens)) == (known, len(known) + n_untaken)
    driver.context.check_cells()


def check_nothing_left(driver: Driver) -> None:
    """After the last ending: no slot, no session, no request, no cell but those of idle prefixes."""
    assert all(tracked.ended for tracked in driver.tracked)
    check_invariants(driver)
    assert driver.engine.counts() == (0, 0, 0, 0)
    assert driver.context.open_seqs == []
    if driver.draft_context is not None:
        assert driver.draft_context.open_seqs == []
        driver.draft_context.check_cells()
    told = sorted(name for name, _ in driver.watcher.endings)
    assert told == sorted(driver.watcher.added), "not exactly one clean-up each"
