"""Pictures of every view, for people to look at."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.chromium import Tab, browsing, expect
from tests.browser.load import under_load
from tests.browser.scenes import LOOKS, SESSIONS, VIEWS, bring, enliven, say
from tests.clients.looking import write_eyes
from tests.clients.model import serving
from tests.support.http_process import until
from tests.support.toy_projectors import noise_png

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ANSWER = 600  # tokens


def take(folder: Path) -> int:
    """Each view in each look, as ``VIEW-SCHEME-WIDTH.png``; 1 if something went wrong in the page."""
    folder.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    with ExitStack() as stack:
        browser = stack.enter_context(browsing())
        faults += take_alone(browser, folder) + take_picture(browser, folder)
    sys.stdout.writelines(f"FAULT: {fault}\n" for fault in faults)
    return int(bool(faults))


def take_alone(browser: Browser, folder: Path) -> list[str]:
    """Take the views of a server of one model; return what went wrong."""
    faults: list[str] = []
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(models, "--parallel", "9", "--kv-unified"))
        stack.enter_context(under_load(server, SESSIONS, max_tokens=ANSWER, again=True))
        for view in VIEWS:
            tab = Tab(browser, server.url)
            enliven(tab.open(view), view)
            photograph(tab, folder, view)
            faults += tab.faults
            tab.close()
    return faults


def take_picture(browser: Browser, folder: Path) -> list[str]:
    """Take a chat with a picture that is pasted, that is encoded, and whose encoding was stopped."""
    with ExitStack() as stack:
        models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(models, *write_eyes(models)))
        tab = Tab(browser, server.url)
        page = tab.open("chat")
        bring(page, "paste", noise_png(480, 320, seed=1))
        expect(page.locator(".composer").get_by_role("img", name="Image 1")).to_be_visible()
        photograph(tab, folder, "picture-pasted")
        say(page, "What is in this picture?")
        until(lambda: server.http.get("/slots").json(), lambda slots: any(slot["is_processing"] for slot in slots))
        photograph(tab, folder, "picture-encoded")
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.locator(".cut.stopped")).to_be_visible(timeout=60_000)
        photograph(tab, folder, "picture-stopped")
        tab.close()
        return tab.faults


def photograph(tab: Tab, folder: Path, name: str) -> None:
    for look in LOOKS:
        look.show(tab.page)
        path = folder / f"{name}-{look.scheme}-{look.width}.png"
        tab.page.screenshot(path=path)
        sys.stdout.write(f"{path}\n")
