"""Pictures of every view, for people to look at."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.browser.chromium import Tab, browsing
from tests.browser.load import under_load
from tests.browser.scenes import LOOKS, SESSIONS, VIEWS, enliven
from tests.clients.model import serving

ANSWER = 600  # tokens


def take(folder: Path) -> int:
    """Each view in each look, as ``VIEW-SCHEME-WIDTH.png``; 1 if something went wrong in the page."""
    folder.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        browser = stack.enter_context(browsing())
        server = stack.enter_context(serving(models, "--parallel", "9", "--kv-unified"))
        stack.enter_context(under_load(server, SESSIONS, max_tokens=ANSWER, again=True))
        for view in VIEWS:
            tab = Tab(browser, server.url)
            enliven(tab.open(view), view)
            for look in LOOKS:
                look.show(tab.page)
                path = folder / f"{view}-{look.scheme}-{look.width}.png"
                tab.page.screenshot(path=path)
                sys.stdout.write(f"{path}\n")
            faults += tab.faults
            tab.close()
    sys.stdout.writelines(f"FAULT: {fault}\n" for fault in faults)
    return int(bool(faults))
