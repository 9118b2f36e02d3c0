"""A browser without a screen, and pages in it of which nothing is overlooked."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.browser import installation
from tests.support.http_process import LIMIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, FilePayload, Locator, LocatorAssertions, Page, Response, Route
else:  # Playwright can be imported only while it is used
    Browser = CDPSession = FilePayload = Locator = LocatorAssertions = Page = Response = Route = Any
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # for names that are rebound
)
MILLISECONDS = LIMIT * 1e3


@contextmanager
def browsing() -> Iterator[Browser]:
    """Chromium with a new profile; `installation.missing` must be None.

    Playwright's loop runs in this thread until the end: nothing else of asyncio can.
    """
    installation.make_importable()
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=MILLISECONDS)
    with sync_playwright() as playwright:
        path = installation.chromium()
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


def expect(what: Locator) -> LocatorAssertions:
    """Assertions that wait until they hold."""
    from playwright.sync_api import expect as playwrights

    return playwrights(what)


class Tab:
    """A page in a context of its own: no cookies, no storage, and nothing that goes wrong unseen.

    A request to any other origin than `base` is a fault, and so is an error on the console, but for those that belong
    to the test, such as an answer 401: patterns of them are `allowed`. Options are the context's.
    """

    def __init__(self, browser: Browser, base: str, *, allowed: tuple[str, ...] = (), **options: Any) -> None:
        self.base = base
        self.allowed = re.compile("|".join(allowed)) if allowed else None
        self.faults: list[str] = []
        self.context = browser.new_context(base_url=base, **options)
        self.context.set_default_timeout(MILLISECONDS)
        self.context.on("request", lambda request: self._check_origin(request.url))
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self._check(message.type, message.text, message.location["url"]))
        self.page.on("pageerror", lambda error: self.faults.append(f"not caught: {error}"))
        self.page.on("dialog", self._refuse)

    def open(self, view: str = "engine") -> Page:
        self.page.goto(f"/#{view}")
        expect(self.page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
        return self.page

    def _check_origin(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"data", "blob"} and f"{parts.scheme}://{parts.netloc}" != self.base:
            self.faults.append(f"a request to {url}")

    def _check(self, kind: str, text: str, url: str) -> None:
        # What the policy forbids is an error on the console, too.
        if kind in {"error", "warning"} and not (self.allowed and self.allowed.search(text)):
            self.faults.append(f"console: {text} ({url})")

    def _refuse(self, dialog: Any) -> None:
        self.faults.append(f"a dialog of the browser's: {dialog.type} {dialog.message!r}")
        dialog.dismiss()

    def close(self) -> None:
        self.context.close()
