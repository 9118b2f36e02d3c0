"""The benchmark of pictures: what it sends, and what it makes of what was measured."""

from __future__ import annotations

import base64
import random
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from bench.pictures import NAMES, SIDE, leaving_table, left, picture, speed_table
from pyllmcancel.media.pictures import check_picture
from pyllmcancel.pausing import no_pause


def test_each_picture_is_another_one_of_the_same_size() -> None:
    first, again, other = (base64.b64decode(picture(random.Random(n)).partition(",")[2]) for n in (1, 1, 2))
    assert first == again != other
    assert check_picture(first, 1 << 20, no_pause) == (SIDE, SIDE)


def test_a_client_that_leaves_does_not_wait_for_its_answer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        server: Any = SimpleNamespace(pid=process.pid, settings=SimpleNamespace(port=listening.getsockname()[1]))
        assert left(server, picture(random.Random(1)), 0.0) is not None
        process.communicate(b"\n")


def test_speeds_are_compared_round_by_round() -> None:
    seconds = {0: (2.0, 1.0), 1: (3.0, 3.0), 2: (4.0, 5.0)}
    found = [
        {"what": "mmproj-wide.gguf", "turn": turn, "server": name, "cpu_seconds": each[place]}
        for turn, each in seconds.items()
        for place, name in enumerate(NAMES)
    ]
    found.append({"what": "mmproj-wide.gguf", "turn": 3, "server": NAMES[0], "cpu_seconds": 9.0})  # it has no pair
    *_, row = speed_table(found).splitlines()
    assert row == "| nearly all rows | 3.000 | 3.000 | 1.000 | 3 |"


def test_what_is_left_is_told_of_each_server() -> None:
    found = [
        {"what": "left", "turn": turn, "server": NAMES[0], "seconds": turn / 100, "cpu_seconds": turn / 10}
        for turn in range(10)
    ]
    *_, row = leaving_table(found).splitlines()
    assert row == "| pyllmcancel | 10 | 0.050 | 0.090 | 0.090 | 0.500 | 0.900 | 4.5 |"
