"""A session ends the processes that its client leaves in the background."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import session
from tests.clients.session import end_processes, processes_of

OBEYS = "import sys; print(flush=True); sys.stdin.read()"
IGNORES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEYS}"


def test_processes_of_a_home_end_even_if_they_ignore_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GRACE", 0.5)
    home = tmp_path / "home"
    processes = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            env={"HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for program in (OBEYS, IGNORES)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    assert sorted(processes_of(home)) == sorted(process.pid for process in processes)
    end_processes(home)
    assert processes_of(home) == []
    for process in processes:
        process.communicate()
