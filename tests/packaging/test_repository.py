"""llama.cpp is obtained, never committed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_of_llama_cpp_but_the_pin_is_tracked() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "vendor"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert tracked == ["vendor/llama.cpp/PIN.toml"]
