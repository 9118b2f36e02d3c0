"""The progress that is shown while a model is downloaded."""

from __future__ import annotations

import fcntl
import io
import logging
import pty
import struct
import subprocess
import sys
import termios

import pytest

from pyllmcancel.hub import progress
from pyllmcancel.hub.progress import in_time, in_units, shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_are_lines_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level(logging.INFO), shown("user/model") as show:
        show(1_000_000_000, 4_000_000_000)  # what an earlier download left
        show(1_000_000_001, 4_000_000_000)
        now[0] += 6
        show(1_060_000_000, 4_000_000_000)
        now[0] += 6
        show(1_060_000_000, 4_000_000_000)
    assert [record.message for record in caplog.records] == [
        "downloading user/model: 1.1 GB of 4.0 GB (26 %), 10.0 MB/s, 5 min left",
        "downloading user/model: 1.1 GB of 4.0 GB (26 %), 0 B/s",
    ]


def test_on_a_terminal_there_is_a_bar_and_log_lines_stand_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        with shown("user/model") as show:
            show(0, 2_000_000)
            show(1_000_000, 2_000_000)
            logging.getLogger().warning("between")
            show(2_000_000, 2_000_000)
    finally:
        logging.getLogger().removeHandler(handler)
    text = terminal.getvalue()
    assert "user/model:  50 %" in text
    assert "1.0 MB of 2.0 MB" in text
    assert "\nbetween\n" in text.replace("\r", "\n")
    assert text.endswith("\r"), "the bar is gone"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5_200_000, "5.2 MB"), (4_700_000_000_000, "4700.0 GB")],
)
def test_sizes(size: int, text: str) -> None:
    assert in_units(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (89, "89 s"), (120, "2 min"), (7200, "2.0 h")])
def test_times(seconds: float, text: str) -> None:
    assert in_time(seconds) == text


def test_a_terminal_that_says_it_has_no_rows_has_a_bar() -> None:
    code = "import sys; from pyllmcancel.hub.progress import shown\nwith shown('user/model') as show: show(1, 2)"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    with open(ours, "rb", buffering=0) as terminal, open(theirs, "wb") as stderr:
        subprocess.run([sys.executable, "-P", "-c", code], check=True, stderr=stderr)
        assert b"user/model:  50 %" in terminal.read(100_000)
