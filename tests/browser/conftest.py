"""One browser for all tests here, and tabs that fail their test if anything went wrong in them unseen."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser import installation
from tests.browser.chromium import Browser, Tab, browsing
from tests.browser.load import Load, under_load
from tests.clients.model import serving
from tests.support.http_process import ServerProcess

OpenTab = Callable[..., Tab]
N_SLOTS = 9  # one for each of eight clients, and one more


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Closed before tests elsewhere begin: they have event loops of their own."""
    if (reason := installation.missing()) is not None:
        pytest.skip(reason)
    with browsing() as found:
        yield found


@pytest.fixture(scope="package")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With the packaged model, whose answers end here only where they must."""
    with serving(tmp_path_factory.mktemp("models"), "--parallel", str(N_SLOTS), "--kv-unified") as process:
        yield process


@pytest.fixture
def load(server: ServerProcess) -> Iterator[Load]:
    with under_load(server) as load:
        yield load


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Make a `Tab`: ``open_tab(url, allowed=(…), viewport=…)``. At the end of the test none has a fault."""
    tabs: list[Tab] = []

    def make(base: str, **options: Any) -> Tab:
        tabs.append(Tab(browser, base, **options))
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.close()
    if faults := [fault for tab in tabs for fault in tab.faults]:
        pytest.fail("in the page: " + "\n".join(faults), pytrace=False)


@pytest.fixture
def tab(server: ServerProcess, open_tab: OpenTab) -> Tab:
    return open_tab(server.url)
