"""Requests that arrive, are prepared, refused, accepted and cancelled by many threads at once."""

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import RequestCancelled
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.requests.request import Names, Request
from tests.support.driver import Driver, RecordingSink, cancel_session
from tests.support.step_gate import TEST_LIMIT

N_REQUESTS = 400
N_PREPARERS = 4
N_CANCELLERS = 3
PARAMS = generation_params(temperature=0.0, max_tokens=2)


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Crowd:
    def __init__(self, driver: Driver, seed: int) -> None:
        self.engine = driver.engine
        self.seed = seed
        self.arrived: list[Request] = []
        self.refused: list[Request] = []
        self.given_up: list[Request] = []  # once for each call of a `give_up`
        self.cancelled: list[Request] = []  # once for each cancel that has decided a fate
        self.twice_listed: list[str] = []
        self._workers = ThreadPoolExecutor(N_PREPARERS)
        self._done = threading.Event()

    def run(self) -> None:
        cancellers = [threading.Thread(target=self._cancel, args=(number,)) for number in range(N_CANCELLERS)]
        with ThreadPoolExecutor(N_PREPARERS) as preparers:
            for canceller in cancellers:
                canceller.start()
            for outcome in [preparers.submit(self._prepare, number) for number in range(N_REQUESTS)]:
                outcome.result(TEST_LIMIT)
        self._done.set()
        for canceller in cancellers:
            canceller.join(TEST_LIMIT)
        self._workers.shutdown()

    def _prepare(self, number: int) -> None:
        """Act as an endpoint: some pieces of work, each in another thread, and then an answer or an acceptance."""
        choose = random.Random(f"{self.seed} {number}")
        request = self.engine.arrive(request_id=f"r{number}", session=f"s{number % 3}")
        self.arrived.append(request)
        with suppress(RequestCancelled):
            for _ in range(choose.randrange(3)):
                self._work(request)
            self.engine.arrivals.name(request, Names(f"t{number % 3}", "root", choose.choice((None, "a", "b")), 0))
            self._work(request)
            if choose.random() < 0.6:
                self.engine.fill(request, [[1, 2, 3]], PARAMS, RecordingSink())
                self.engine.accept(request)
        if request.status is RequestStatus.PREPARING and self.engine.arrivals.refuse(request):
            self.refused.append(request)

    def _work(self, request: Request) -> None:
        """RequestCancelled is raised at once, even if the work goes on."""
        stopped = threading.Event()

        def give_up() -> None:
            self.given_up.append(request)
            stopped.set()

        self.engine.registry.begin_work(request, give_up)

        def work() -> None:
            self.engine.arrivals.end_work(request)
            stopped.set()

        self._workers.submit(work)
        assert stopped.wait(TEST_LIMIT)

    def _cancel(self, number: int) -> None:
        choose = random.Random(f"{self.seed} canceller {number}")
        while not self._done.is_set():
            live = self.engine.registry.requests()
            ids = Counter(request.id for request in live)
            self.twice_listed += [name for name, n in ids.items() if n > 1]
            if live and choose.random() < 0.7:
                request = choose.choice(live)
                if self.engine.cancel(request, choose.choice(list(CancelReason))):
                    self.cancelled.append(request)
            else:
                cancel_session(self.engine, choose.choice(("s0", "s1", "t2", "root")))


@pytest.mark.parametrize("seed", range(3))
def test_each_arrived_request_is_refused_without_a_trace_or_ends_once(seed: int) -> None:
    driver = Driver(max_queue=N_REQUESTS)
    driver.gate.open()
    crowd = Crowd(driver, seed)
    try:
        crowd.run()
        endings = {request.id: request.ended.result(TEST_LIMIT) for request in crowd.arrived}
        refused = {request.id for request in crowd.refused}
        assert len(endings) == N_REQUESTS
        assert len(crowd.refused) == len(refused)
        assert crowd.twice_listed == []
        assert driver.engine.registry.requests() == []
        assert driver.engine.counts() == (0, 0, 0, 0)
        assert Counter(name for name, _ in driver.watcher.endings) == Counter(endings.keys() - refused)
        assert not refused & {*driver.watcher.added, *driver.watcher.cancelled}
        assert not refused & {summary.id for summary in driver.engine.registry.history()}
        assert max(Counter(crowd.given_up).values(), default=1) == 1
        assert max(Counter(crowd.cancelled).values(), default=1) == 1
        for request in crowd.cancelled:
            assert endings[request.id].finish_reason is FinishReason.CANCELLED
        for request in crowd.arrived:
            if isinstance(request.sink, RecordingSink):
                assert len(request.sink.endings) <= 1
        # Otherwise the test has shown nothing.
        phases = {ending.phase for ending in endings.values() if ending.finish_reason is FinishReason.CANCELLED}
        assert RequestStatus.PREPARING in phases
        assert refused
    finally:
        driver.close()
