"""The folder of the sockets: private, removed in the end, and after a server that was killed by the next one."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from pyllmcancel.front import folder as folders
from pyllmcancel.front.folder import PREFIX, socket_folder

HOLDS = """
import sys
from pathlib import Path
from pyllmcancel.front.folder import socket_folder
with socket_folder(Path(sys.argv[1])) as folder:
    (folder / "m1.sock").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_private_and_removed_in_the_end(tmp_path: Path) -> None:
    with socket_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "m1.sock").touch()
        with socket_folder(tmp_path) as other:
            assert folder.exists()
            assert other != folder
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_server_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        left = Path(process.stdout.readline().decode().strip())
        with socket_folder(tmp_path):
            assert left.exists()  # its server lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.exists()
    with socket_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_is_not_an_abandoned_folder_stays(tmp_path: Path) -> None:
    empty = tmp_path / f"{PREFIX}begun"  # another server is about to lock it
    empty.mkdir()
    link = tmp_path / f"{PREFIX}link"
    link.symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / folders.LOCK).touch()
    pipe = tmp_path / f"{PREFIX}pipe"  # of somebody who wants us to wait for ever
    pipe.mkdir()
    os.mkfifo(pipe / folders.LOCK)
    with socket_folder(tmp_path):
        assert empty.exists()
        assert pipe.exists()
        assert link.exists()
        assert (tmp_path / folders.LOCK).exists()


def test_a_folder_removed_before_it_was_locked_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def first_is_removed(lock: IO[str]) -> bool:
        folder = Path(lock.name).parent
        made.append(folder)
        if len(made) == 1:
            shutil.rmtree(folder)
        return True

    monkeypatch.setattr(folders, "try_lock", first_is_removed)
    with socket_folder(tmp_path) as folder:
        assert folder == made[1]
        assert folder.exists()
