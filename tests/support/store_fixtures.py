"""Fixtures of tests that open stores: a plugin for pytest, which a test module names."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores import Disk, Stores


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "responses.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Stores]:
    stores = Stores(path)
    yield stores
    stores.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root, and the right to mount")
    yield Disk(folder)
    subprocess.run(["umount", "-l", folder], check=True)
