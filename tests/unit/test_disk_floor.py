"""Prefixes that survive a restart: an engine is closed, or its process dies, and another one finds them."""

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.adapters import Adapter
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import UsageError
from pyllmcancel.requests.request import NO_OWNER, Request
from pyllmcancel.scheduling import disk_floor, prefix_folder
from pyllmcancel.scheduling.disk_floor import DiskFloor
from pyllmcancel.scheduling.prefix_folder import SUFFIX, PrefixFolder
from tests.support.driver import MEMORIES, Driver, MakeDriver, RecordingSink, Stop, Tracked, complete
from tests.support.fake_native import BYTES_PER_CELL, SwappedPrefix
from tests.support.step_gate import TEST_LIMIT

# Its main thread ends while another one still has an engine.
MAIN_THREAD_ENDS = """
import sys, threading
from pathlib import Path
from tests.unit.test_disk_floor import PROMPT, Machine, answered, counts

def go_on():
    threading.main_thread().join()
    for _ in range(2):
        driver = machine.start()
        assert answered(driver, PROMPT).sink.ending().error is None
        driver.close()
    print(len(machine.files), counts(driver).n_restored)

machine = Machine(Path(sys.argv[1]))
machine.write(b"the first one")
threading.Thread(target=go_on).start()
"""
PROMPT = b"a prompt of more than sixty tokens, which took a while to compute, and is sent again"
PROMPTS = [bytes([65 + number]) * 40 for number in range(4)]
MORE = b" with more behind it"
MIB = 1 << 20


class Machine:
    """Servers that follow each other, on one folder."""

    def __init__(self, folder: Path, make_driver: MakeDriver = Driver) -> None:
        self.folder = folder
        self._make = make_driver

    def start(
        self, *, identity: str = "one", limit: int = MIB, blank: Any = SwappedPrefix.blank, **options: Any
    ) -> Driver:
        disk = DiskFloor(PrefixFolder(self.folder, limit), lambda _: identity, blank)
        disk.wait_until_known(TEST_LIMIT)
        return self.start_on(disk, **options)

    def start_on(self, disk: DiskFloor, **options: Any) -> Driver:
        return self._make(disk=disk, **options)

    def write(self, *prompts: bytes, **options: Any) -> None:
        """Write the prompts into files: a server answers them, and closes."""
        driver = self.start(**options)
        for prompt in prompts:
            answered(driver, prompt)
        driver.close()

    def start_to_read(self, parallel: int) -> tuple[Driver, Stop]:
        """Start a server that stops when it reads a file."""
        reading = Stop()
        return self.start(
            blank=lambda *parts: (reading.here(), SwappedPrefix.blank(*parts))[1], parallel=parallel
        ), reading

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}"))


@pytest.fixture
def machine(tmp_path: Path, make_driver: MakeDriver) -> Machine:
    return Machine(tmp_path / "prefixes", make_driver)


def answered(driver: Driver, prompt: bytes, **options: Any) -> Tracked:
    """A request that was served, whatever it had to wait for."""
    driver.gate.open()
    tracked = driver.submit(prompt, settle=False, **options)
    assert tracked.ending
    assert tracked.sink.ending()
    return tracked


def submit_all(driver: Driver, prompts: list[bytes], max_tokens: int) -> tuple[Request, RecordingSink]:
    """One request of several prompts."""
    sink, params = RecordingSink(), generation_params(temperature=0.0, max_tokens=max_tokens)
    return driver.engine.submit([list(prompt + MORE) for prompt in prompts], params, sink), sink


def completes(tracked: Tracked) -> bool:
    """Wait for the ending; return whether the answer is whole."""
    return tracked.ending is not None and complete(tracked)


def disk_of(driver: Driver) -> DiskFloor:
    return driver.engine.workload.disk  # type: ignore[union-attr, return-value]


def counts(driver: Driver) -> Any:
    return disk_of(driver).counts


def n_cached(tracked: Tracked) -> int:
    return tracked.request.usage().cached_tokens


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_prompt_goes_on_where_it_was_after_a_restart(machine: Machine, memory: str) -> None:
    driver = machine.start(**MEMORIES[memory])
    first = answered(driver, PROMPT)
    driver.close()
    driver = machine.start(**MEMORIES[memory])
    prompt = PROMPT + bytes(first.sink.tokens()[:-1]) + MORE
    again = answered(driver, prompt)
    assert n_cached(again) == len(PROMPT) + 3
    assert (counts(driver).n_restored, sum(counts(driver).refused.values())) == (1, 0)


def test_while_a_file_is_read_other_requests_go_on(machine: Machine) -> None:
    machine.write(PROMPT)
    driver, reading = machine.start_to_read(parallel=2)
    returning = driver.submit(PROMPT + MORE, settle=False)
    reading.wait_reached()
    assert completes(answered(driver, b"somebody else's question"))
    assert not returning.ended
    reading.go_on()
    assert completes(returning)
    assert n_cached(returning) == len(PROMPT)


def test_a_request_that_waits_for_a_file_can_be_cancelled_and_nothing_more_is_read_for_it(machine: Machine) -> None:
    machine.write(PROMPT)
    driver, reading = machine.start_to_read(parallel=1)
    first = driver.submit(PROMPT + MORE, settle=False)
    reading.wait_reached()
    for tracked in (first, driver.submit(PROMPT + MORE + MORE, settle=False)):
        driver.engine.cancel(tracked.request)
        assert tracked.ending.cancel_reason is not None
    driver.gate.open()
    assert completes(driver.submit(b"the next one", settle=False))
    reading.go_on()
    driver.close()
    assert (counts(driver).n_restored, sum(counts(driver).refused.values())) == (0, 0)


@pytest.mark.parametrize(("error", "n_files"), [(errno.EMFILE, 1), (errno.ENOMEM, 1), (errno.EIO, 0)])
def test_a_file_stays_unless_it_is_the_reason_why_it_cannot_be_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: int, n_files: int
) -> None:
    machine.write(PROMPT)

    def fail(*_: Any) -> Any:
        raise OSError(error, os.strerror(error))

    driver = machine.start()
    with monkeypatch.context() as patch:
        patch.setattr(disk_floor, "open", fail, raising=False)
        again = driver.submit(PROMPT + MORE, settle=False, max_tokens=1)
        driver.gate.open()
        assert completes(again)
    assert (n_cached(again), len(machine.files), counts(driver).refused["failed"]) == (0, n_files, 1)


@pytest.mark.parametrize("together", [False, True])
def test_no_more_prefixes_are_read_at_once_than_there_are_slots(machine: Machine, together: bool) -> None:
    machine.write(*PROMPTS, parallel=4)
    driver, reading = machine.start_to_read(parallel=1)
    if together:
        _, sink = submit_all(driver, PROMPTS, max_tokens=4)
        sinks = [sink] * 4
    else:
        sinks = [driver.submit(prompt + MORE, settle=False).sink for prompt in PROMPTS]
    reading.wait_reached()
    assert disk_of(driver).n_fetches == 1
    driver.gate.open()
    reading.go_on()
    for index, sink in enumerate(sinks):
        assert sink.ending().error is None
        assert sink.tokens(index if together else 0) == driver.model.greedy(list(PROMPTS[index] + MORE), 4)
    assert disk_of(driver).n_fetches == 0


def test_a_file_read_at_once_leaves_no_request_behind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write(PROMPT)
    driver = machine.start()
    disk = disk_of(driver)
    is_reading = disk.is_reading

    def just_read(key: Hashable) -> bool:
        """Say that the file is being read, and return when it is not any more."""
        found = is_reading(key)
        if found:
            disk._fetches[key].result(TEST_LIMIT)
        return found

    monkeypatch.setattr(disk, "is_reading", just_read)
    again = answered(driver, PROMPT + MORE)
    assert n_cached(again) == len(PROMPT)


def test_a_slow_reader_keeps_no_files_in_memory_that_others_wait_for(machine: Machine) -> None:
    machine.write(*PROMPTS[:2])
    driver = machine.start(parallel=2)
    running = driver.submit(b"it has a slot", max_tokens=60)
    slow, sink = submit_all(driver, PROMPTS[:2], max_tokens=20)
    driver.step()
    disk = disk_of(driver)
    for fetch in list(disk._fetches.values()):
        fetch.result(TEST_LIMIT)
    driver.step_until(lambda: bool(sink.tokens(0)))
    assert disk.n_fetches == 1, "the second prompt waits for a slot"
    sink.full = True
    driver.step_until(lambda: slow.paused)
    assert disk.n_fetches == 0
    next_ = driver.submit(b"the next one")
    driver.step_until(lambda: driver.holds(next_))
    assert not running.ended
    sink.full = False
    driver.run_to_the_end()
    driver.gate.open()
    assert sink.ending().error is None
    assert [sink.tokens(index) for index in range(2)] == [
        driver.model.greedy(list(prompt + MORE), 20) for prompt in PROMPTS[:2]
    ]


def test_another_owner_finds_nothing(machine: Machine) -> None:
    driver = machine.start()
    answered(driver, PROMPT, owner="alice")
    driver.close()
    driver = machine.start()
    assert n_cached(answered(driver, PROMPT + MORE, owner="bob")) == 0
    assert n_cached(answered(driver, PROMPT + MORE, owner="alice")) == len(PROMPT)


def test_another_model_finds_nothing_and_the_files_stay_for_theirs(machine: Machine) -> None:
    machine.write(PROMPT, identity="one")
    driver = machine.start(identity="two")
    assert n_cached(answered(driver, PROMPT + MORE)) == 0
    assert counts(driver).refused["other_identity"] == 1
    driver.close()
    assert n_cached(answered(machine.start(identity="one"), PROMPT + MORE)) == len(PROMPT)


def test_a_damaged_file_is_deleted_and_the_prompt_is_computed(machine: Machine) -> None:
    machine.write(PROMPT)
    (path,) = machine.files
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # in the state: the head is fine
    path.write_bytes(content)
    driver = machine.start()
    again = answered(driver, PROMPT + MORE)
    assert n_cached(again) == 0
    assert counts(driver).refused["damaged"] == 1
    assert not path.exists()


def test_a_torn_file_is_deleted_at_the_start(machine: Machine) -> None:
    machine.write(PROMPT)
    (path,) = machine.files
    (machine.folder / f".{path.name}.00112233.tmp").write_bytes(path.read_bytes()[:100])
    path.write_bytes(path.read_bytes()[:-100])
    driver = machine.start()
    assert counts(driver).n_files == 0
    assert sorted(file.name for file in machine.folder.iterdir()) == ["lock"]
    assert counts(driver).refused["damaged"] == 1


def test_a_conversation_has_one_file_which_is_written_again_for_much_more(machine: Machine) -> None:
    driver = machine.start()
    text = PROMPT + bytes(answered(driver, PROMPT).sink.tokens())
    driver.close()
    for more, n_written in ((b"!", 0), (MORE * 3, 1)):
        driver = machine.start()
        answered(driver, text + more)
        driver.close()
        assert (counts(driver).n_written, len(machine.files)) == (n_written, 1)


def test_the_least_recently_used_go_first(machine: Machine) -> None:
    prompts = [bytes([65 + number]) * 60 for number in range(3)]
    limit = 150 * BYTES_PER_CELL
    for number in (0, 1, 0, 2):
        driver = machine.start(limit=limit)
        answered(driver, prompts[number] + MORE, max_tokens=1)
        driver.close()
    driver = machine.start(limit=limit)
    assert counts(driver).n_bytes <= limit
    assert [n_cached(answered(driver, prompt + MORE + b"?")) > 60 for prompt in prompts] == [False, False, True]


def test_the_owner_with_the_most_bytes_loses_its_own(machine: Machine) -> None:
    limit = 250 * BYTES_PER_CELL
    driver = machine.start(limit=limit, spare_seqs=8)
    answered(driver, PROMPT[:40], owner="frugal")
    for number in range(6):
        answered(driver, bytes([65 + number]) * 60, owner="greedy")
    driver.close()
    again = machine.start(limit=limit)
    assert n_cached(answered(again, PROMPT[:40] + MORE, owner="frugal")) == 40


def test_a_prefix_larger_than_the_limit_is_not_written(machine: Machine) -> None:
    driver = machine.start(limit=20 * BYTES_PER_CELL)
    assert completes(answered(driver, PROMPT))
    driver.close()
    assert (machine.files, counts(driver).refused["too_large"]) == ([], 1)


def test_files_and_their_folder_are_the_users_own(machine: Machine) -> None:
    machine.write(PROMPT)
    assert stat.S_IMODE(machine.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in machine.folder.iterdir()} == {0o600}


def test_a_folder_in_use_is_refused_and_free_after_a_close(machine: Machine) -> None:
    driver = machine.start()
    with pytest.raises(UsageError, match="another server uses"):
        PrefixFolder(machine.folder, MIB)
    driver.close()
    PrefixFolder(machine.folder, MIB).close()


@pytest.mark.parametrize(("error", "reason"), [("ENOSPC", "disk_full"), ("EDQUOT", "disk_full"), ("EIO", "failed")])
def test_a_disk_that_fails_costs_no_request_anything_and_keeps_no_part_of_a_file(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: str, reason: str
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(getattr(errno, error), "of the test")

    monkeypatch.setattr(os, "fsync", fail)
    driver = machine.start()
    answered(driver, PROMPT)
    driver.close()
    assert counts(driver).refused[reason] == 1
    assert "could not be written to disk" in caplog.text
    assert [file.name for file in machine.folder.iterdir()] == ["lock"]


def test_a_folder_that_is_deleted_costs_no_request_anything(machine: Machine) -> None:
    machine.write(PROMPT)
    driver = machine.start()
    for file in machine.folder.iterdir():
        file.unlink()
    machine.folder.rmdir()
    again = answered(driver, PROMPT + MORE)
    assert n_cached(again) == 0
    driver.close()
    assert counts(driver).refused["failed"] == 2, "one was not read, one not written"


def test_a_request_that_does_not_want_the_cache_computes_all(machine: Machine) -> None:
    machine.write(PROMPT)
    driver = machine.start()
    assert n_cached(answered(driver, PROMPT + MORE, reuse_prefix=False)) == 0
    assert counts(driver).n_restored == 0


def test_an_engine_that_outlives_the_main_thread_has_its_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN_THREAD_ENDS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3 * TEST_LIMIT, check=False)
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr


def test_what_is_erased_while_it_is_written_is_gone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, write = Stop(), prefix_folder.write
    monkeypatch.setattr(prefix_folder, "write", lambda *parts: (writing.here(), write(*parts))[1])
    driver = machine.start(named_slots=True)
    answered(driver, PROMPT, slot=0)
    writing.wait_reached()
    assert driver.engine.slots.erase(NO_OWNER, 0).result(TEST_LIMIT) > len(PROMPT)
    writing.go_on()
    driver.close()
    assert machine.files == []


def test_the_engine_awaits_no_deletion_of_what_is_erased(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    deleting, unlink, written, write = Stop(), Path.unlink, threading.Event(), prefix_folder.write
    monkeypatch.setattr(prefix_folder, "write", lambda *parts: (write(*parts), written.set())[0])
    driver = machine.start(named_slots=True)
    answered(driver, PROMPT, slot=0)
    assert written.wait(TEST_LIMIT)
    assert disk_of(driver).wait_until_free(TEST_LIMIT)  # it is known, too
    (file,) = machine.files
    monkeypatch.setattr(Path, "unlink", lambda *parts, **options: (deleting.here(), unlink(*parts, **options))[1])
    assert driver.engine.slots.erase(NO_OWNER, 0).result(TEST_LIMIT) > len(PROMPT)
    deleting.wait_reached()
    assert n_cached(answered(driver, PROMPT + MORE)) == 0  # the file is still there
    deleting.go_on()
    driver.close()
    assert file not in machine.files


def test_what_is_erased_is_gone_if_the_close_comes_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, write = Stop(), prefix_folder.write
    driver = machine.start(named_slots=True)
    disk = disk_of(driver)
    monkeypatch.setattr(prefix_folder, "write", lambda *parts: (writing.here(), write(*parts))[1])
    monkeypatch.setattr(disk, "wait_until_free", lambda _seconds: False)  # as if the disk took longer than a close
    thread = disk._writer._thread
    join = thread.join
    # The file is written once the close has dropped what it drops.
    monkeypatch.setattr(thread, "join", lambda: (writing.go_on(), join())[1])
    answered(driver, PROMPT, slot=0)
    writing.wait_reached()
    assert driver.engine.slots.erase(NO_OWNER, 0).result(TEST_LIMIT) > len(PROMPT)
    driver.close()
    assert machine.files == []


def test_a_close_awaits_a_hash_that_is_to_be_written(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    closes, wait = threading.Event(), DiskFloor.wait_until_known
    monkeypatch.setattr(DiskFloor, "wait_until_known", lambda *parts: (closes.set(), wait(*parts))[1])

    def hashed(_check: Callable[[], None]) -> str:
        assert closes.wait(TEST_LIMIT)
        return "one"

    driver = machine.start_on(DiskFloor(PrefixFolder(machine.folder, MIB), hashed, SwappedPrefix.blank))
    answered(driver, PROMPT)
    assert machine.files == []
    driver.close()
    assert len(machine.files) == 1


def test_a_close_does_not_wait_for_the_hash_of_a_large_model(tmp_path: Path) -> None:
    begun = Stop()

    def hashed(check: Callable[[], None]) -> str:
        begun._reached.set()
        while True:
            check()

    disk = DiskFloor(PrefixFolder(tmp_path, MIB), hashed, SwappedPrefix.blank)
    begun.wait_reached()
    assert not disk.is_free
    assert not disk.wait_until_free(TEST_LIMIT)
    disk.close()
    PrefixFolder(tmp_path, MIB).close()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_prefix_on_the_disk_is_used_by_requests_of_its_adapters_only(machine: Machine, memory: str) -> None:
    scales = ((0, 1.0),)
    options: dict[str, Any] = {**MEMORIES[memory], "adapters": (Adapter(), Adapter(invocation_tokens=tuple(b"<go>")))}
    driver = machine.start(**options)
    first = answered(driver, PROMPT, adapters=scales)
    driver.close()
    prompt = PROMPT + bytes(first.sink.tokens()[:-1])
    again = machine.start(**options)
    assert len(machine.files) == 1
    for others in ((), ((0, 0.5),), ((1, 1.0),)):
        answered(again, prompt + b"<go>", adapters=others)
    assert counts(again).n_restored == 0
    own = answered(again, prompt + MORE, adapters=scales)
    assert (counts(again).n_restored, n_cached(own)) == (1, len(prompt))
