"""As the first process of a container, which has no signal that it does not handle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.http_process import LIMIT, until

# Says so when it has come to the first import of the command's own, and stays there.
PROGRAM = """
import os, sys, time

class Stay:
    def find_spec(self, name, path=None, target=None):
        if name == "pyllmcancel.cli.parser":
            os.write(1, b"importing\\n")
            time.sleep(600)

sys.meta_path.insert(0, Stay())
from pyllmcancel.cli import main
sys.exit(main())
"""
ISOLATED = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


def test_a_signal_while_it_imports_ends_it() -> None:
    try:
        subprocess.run([*ISOLATED, "true"], capture_output=True, check=True, timeout=LIMIT)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system gives no process namespaces")
    command = [*ISOLATED, sys.executable, "-c", PROGRAM, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as outer:
        try:
            assert outer.stdout is not None
            assert outer.stdout.readline() == b"importing\n"
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            (inner,) = until(lambda: children.read_text().split(), bool)
            os.kill(int(inner), signal.SIGTERM)
            assert outer.wait(LIMIT) == 128 + signal.SIGTERM
        finally:
            outer.kill()
