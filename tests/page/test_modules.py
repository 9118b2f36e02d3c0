"""The page's modules that need no browser, by Node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="the page's modules are NOT tested: there is no node on this machine")
@pytest.mark.parametrize("path", sorted(HERE.glob("*.test.mjs")), ids=lambda path: path.name)
def test_the_tests_of_a_module_pass(path: Path) -> None:
    assert NODE is not None
    ran = subprocess.run([NODE, "--test", str(path)], capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
