"""The work of a process, by the kernel's account of it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from pyllmcancel.bench.server_truth import cpu_seconds, watch_until_quiet

# Computes between a line that it reads and the next one, in a second thread, like a server.
WORKER = """
import sys, threading
going = threading.Event()
def work():
    going.wait()
    while going.is_set():
        sum(range(1000))
for line in sys.stdin:
    if going.is_set():
        going.clear()
    else:
        going.set()
        threading.Thread(target=work).start()
    print("told", flush=True)
"""


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(worker: subprocess.Popen[str]) -> float:
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "told\n"
    return time.monotonic()


def burn(pid: int, seconds: float) -> None:
    before = cpu_seconds(pid)
    while cpu_seconds(pid) < before + seconds:
        time.sleep(0.001)


def test_cpu_time_grows_while_a_thread_computes_and_not_while_it_rests(worker: subprocess.Popen[str]) -> None:
    tell(worker)
    burn(worker.pid, 0.05)
    tell(worker)
    watch_until_quiet(worker.pid, time.monotonic())
    rested = cpu_seconds(worker.pid)
    assert watch_until_quiet(worker.pid, time.monotonic()).seconds >= 0.0
    assert cpu_seconds(worker.pid) - rested <= 0.002


def test_the_time_until_rest_is_that_of_the_last_computing(worker: subprocess.Popen[str]) -> None:
    began = tell(worker)
    burn(worker.pid, 0.05)
    stopped = tell(worker)
    stop = watch_until_quiet(worker.pid, began)
    # Not earlier than it was told to stop, and not as late as the window in which it was seen to rest.
    assert stopped - began - 0.02 <= stop.seconds <= time.monotonic() - began - 0.04


def test_a_process_that_never_rests_is_given_up(worker: subprocess.Popen[str]) -> None:
    began = tell(worker)
    with pytest.raises(TimeoutError, match="still computes"):
        watch_until_quiet(worker.pid, began, give_up=0.2)


def test_cpu_time_of_threads_that_have_ended_still_counts(worker: subprocess.Popen[str]) -> None:
    used = [cpu_seconds(worker.pid)]
    for _ in range(3):
        tell(worker)
        burn(worker.pid, 0.02)
        tell(worker)
        used.append(cpu_seconds(worker.pid))
    assert all(later - earlier >= 0.02 for earlier, later in pairwise(used))


def test_a_process_that_is_not_there_is_an_error(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.wait()
    with pytest.raises(ProcessLookupError):
        cpu_seconds(worker.pid)
