"""Fixtures of all tests: leak counters, tiny models, Hypothesis profiles."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import tiny_models
from tests.support.driver import Driver
from tests.support.invariants import check_invariants, check_nothing_left

# Python started by a test, in the checkout's root, must find the installed package and not the checkout's sources.
os.environ["PYTHONSAFEPATH"] = "1"
# What a test's servers store is nobody's, and each has it for itself.
os.environ["PYLLMCANCEL_STORE"] = "memory"

# Schedules are compared by what happens, never by how long it takes. The default is the same in every run;
# `pytest --hypothesis-profile=thorough` tries 10,000 others.
COMMON = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", COMMON, max_examples=150, stateful_step_count=30, derandomize=True)
settings.register_profile("thorough", COMMON, max_examples=10_000, stateful_step_count=40)
settings.load_profile("ci")

# A shell's background job begins without Ctrl-C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run whole folders in two processes if there are two cores, and single files and tests in this one."""
    return 2 if any(map(os.path.isdir, config.args)) and len(os.sched_getaffinity(0)) > 1 else 0


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pyllmcancel-")}


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of coroutine tests, which run on anyio's plugin: the server's own stack brings that along."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """No test leaves an engine behind: an engine is its threads."""
    before = engine_threads()
    yield
    leaked = engine_threads() - before
    assert not leaked, f"threads left behind: {sorted(thread.name for thread in leaked)}"


@pytest.fixture
def make_driver() -> Iterator[Callable[..., Driver]]:
    """Make drivers; at the end of the test the invariants hold, everything ends, and nothing is left."""
    drivers: list[Driver] = []

    def make(**options: Any) -> Driver:
        drivers.append(Driver(**options))
        return drivers[-1]

    yield make
    try:
        for driver in drivers:
            if not driver.engine.registry.closed:
                driver.settle()
            if not driver.dead:
                check_invariants(driver)
    finally:
        for driver in drivers:
            driver.close()
    for driver in drivers:
        if not driver.dead:
            check_nothing_left(driver)


@pytest.fixture
def driver(make_driver: Callable[..., Driver]) -> Driver:
    """An attention model, two slots, steps held."""
    return make_driver()


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny F32 models by what they remember with."""
    folder = tmp_path_factory.mktemp("models")
    writers = {
        "attention": tiny_models.write_tiny_llama,
        "sliding-window": tiny_models.write_tiny_sliding_window,
        "recurrent": tiny_models.write_tiny_recurrent,
        "hybrid": tiny_models.write_tiny_hybrid,
    }
    return {kind: write(folder / f"{kind}.gguf") for kind, write in writers.items()}
