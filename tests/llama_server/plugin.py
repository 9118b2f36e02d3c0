"""A pytest plug-in, loaded into the run of llama.cpp's tests: no downloads, and a line of JSON for every result.

It runs under whatever Python their requirements are installed in, so it imports nothing but those.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    sys.path.insert(0, str(config.rootpath))
    import utils  # type: ignore[import-not-found]

    Path(utils.TMP_DIR).mkdir(exist_ok=True)
    # It would download every model of every test before the first.
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    requests.get = from_folder(requests.get)


def from_folder(get: Callable[..., requests.Response]) -> Callable[..., requests.Response]:
    """Return ``requests.get`` with stand-ins for the pictures of the hub; the harness asks its server by it, too."""

    def found(url: str, **options: Any) -> requests.Response:
        if not url.endswith(".png"):
            return get(url, **options)
        response = requests.Response()
        response.status_code = 200
        response._content = Path(os.environ["PICTURES"], url.rpartition("/")[2]).read_bytes()
        return response

    return found


def pytest_runtest_logreport(report: Any) -> None:
    """One line for a test: its call, or what kept it from being called."""
    if report.when != "call" and report.passed:
        return
    message = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash is not None else str(report.longrepr)
    elif report.skipped:
        message = str(report.longrepr[-1])
    line = {"test": report.nodeid, "outcome": report.outcome, "message": message.strip(), "seconds": report.duration}
    with Path(os.environ["RESULTS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
