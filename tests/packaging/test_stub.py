"""The typed contract of the compiled module is what the compiled module does."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ALLOWED = Path(__file__).with_name("stubtest_allowed.txt")


def test_the_stub_matches_the_module(tmp_path: Path) -> None:
    # Away from the checkout, whose pyllmcancel has no compiled module, and without mypy's settings for it.
    command = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases", "--allowlist", str(ALLOWED)]
    done = subprocess.run([*command, "pyllmcancel._native"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
