"""An engine thread that dies ends every request, says what it died of, and leaves no reader waiting."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyllmcancel.errors import EngineDiedError
from pyllmcancel.events import FinishReason
from pyllmcancel.server.running.metrics import EngineMetrics
from tests.support.driver import Driver, MakeDriver
from tests.support.step_gate import TEST_LIMIT


def kill(driver: Driver, before: Callable[[], object] = lambda: None) -> None:
    """Let the engine thread die of a lack of memory at the end of the held step."""

    def no_memory(_: object) -> None:
        before()
        raise MemoryError("of the test")

    driver.dead = True
    driver.watcher.on_step_done = no_memory
    driver.gate.open()
    assert isinstance(driver.engine.stopped.exception(TEST_LIMIT), MemoryError)


def test_who_had_cancelled_is_told_that_and_nothing_else(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=1)
    tracked = driver.submit()
    driver.submit("neighbour")
    driver.gate.move_on(0.99)
    kill(driver, before=lambda: driver.engine.cancel(tracked.request))
    assert tracked.ending.finish_reason is FinishReason.CANCELLED


def test_who_comes_later_is_told_what_the_engine_died_of(driver: Driver) -> None:
    driver.submit()
    kill(driver)
    with pytest.raises(EngineDiedError, match="MemoryError: of the test") as caught:
        driver.engine.generate("too late")
    assert isinstance(caught.value.__cause__, MemoryError)
    assert driver.engine.failure == "MemoryError: of the test"
    assert driver.engine.stalled_for() == 0.0


def test_a_dead_engine_is_closed_without_waiting_for_the_drain_and_metrics_say_it(driver: Driver) -> None:
    metrics = EngineMetrics()
    metrics.watch(driver.engine, "fake-model")
    assert b"pyllmcancel_engine_dead 0.0" in metrics.exposition()
    driver.submit()
    kill(driver)
    assert b"pyllmcancel_engine_dead 1.0" in metrics.exposition()
    driver.engine.close(drain=1e6)


def test_a_closed_engine_has_stopped_and_not_died(driver: Driver) -> None:
    assert not driver.engine.stopped.done()
    driver.engine.close()
    assert driver.engine.stopped.result(TEST_LIMIT) is None
    assert driver.engine.failure is None


# With all of its address space in use, down to the last small object, by a step that then fails.
WITHOUT_MEMORY = """
import resource, sys, threading
sys.path.append(sys.argv[1])  # the tests; the package is the installed one
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import RequestFailed
from pyllmcancel.engine.generation import Generation
from tests.support import fake_native

hog, submitted = None, threading.Event()
# Down to the smallest, since each size of small objects has a store of its own.
sizes = [*(1 << bits for bits in range(26, 10, -1)), *range(1024, 0, -16)]

class Context(fake_native.Context):
    def step(self, items, **costs):
        global hog
        submitted.wait()
        in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 20), most))
        for size in sizes:
            try:
                while True:
                    hog = (hog, bytes(size))
            except MemoryError:
                pass
        raise MemoryError

context = Context(fake_native.Model(), n_ctx=512, n_seq_max=4, n_batch=64, n_threads=1)
engine = Engine(Generation(context, EngineConfig(parallel=2), fake_native))
streams = [engine.generate(f"request {number}") for number in range(5)]
submitted.set()
told = []
for stream in streams:
    try:
        list(stream)
    except RequestFailed as error:
        told.append(str(error))
hog = None
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
engine.close()
print(len(told), set(told), engine.failure)
"""


def test_without_a_byte_of_memory_every_request_still_gets_its_ending() -> None:
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_LIMIT, check=False)
    # Where Python has no memory to raise the error with, a function of its own fails without saying why.
    reasons = ("MemoryError", "SystemError: error return without exception set")
    assert done.stdout in [f"5 {{'the engine died: {reason}'}} {reason}\n" for reason in reasons], done.stderr
