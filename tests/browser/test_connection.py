"""The page's texts and behaviour when the server goes, comes back, comes back as another, or has no room for it."""

import json
import signal

import pytest

from tests.browser.chromium import Locator, Page, Route, Tab, expect
from tests.browser.conftest import OpenTab
from tests.support.http_process import ServerProcess

pytestmark = pytest.mark.long


BROKEN_OFF = ("net::ERR_", "Failed to fetch")
UNAVAILABLE = "status of 503"
ENDLESS = {"prompt": "def f(", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def feed_state(page: Page, name: str) -> Locator:
    return page.get_by_role("banner").get_by_text(name, exact=True)


def test_a_server_that_comes_back_is_found_again_and_the_gap_is_shown(browser: object, open_tab: OpenTab) -> None:
    with ServerProcess() as first:
        port = first.started().port
        with first.http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
            request_id = answer.headers["x-request-id"]
            # The second server says that it loads, before it is ready.
            page = open_tab(first.url, allowed=(UNAVAILABLE, *BROKEN_OFF)).open("engine")
            expect(page.get_by_role("button", name=f"cancel request {request_id}")).to_have_text("Cancel")
            first.signal(signal.SIGKILL)
            first.wait()
    expect(page.get_by_role("alert").filter(has_text="No connection to the server")).to_be_visible()
    expect(feed_state(page, "reconnecting")).to_be_visible()
    with ServerProcess("--port", str(port)) as second:
        second.started()
        expect(feed_state(page, "live")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_role("region", name="Ended").get_by_text("the server restarted")).to_be_visible()
        gaps = page.evaluate("import('/page/live.js').then(({fleet}) => fleet.first.gaps.map(({why}) => why))")
        assert gaps == ["restarted"]  # which the timeline draws
        with second.http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
            request_id = answer.headers["x-request-id"]
            expect(page.get_by_role("button", name=f"cancel request {request_id}")).to_have_text("Cancel")


def first_event(server: ServerProcess) -> str:
    with server.http.stream("GET", "/v1/events") as answer:
        for line in answer.iter_lines():
            if line.startswith("data:"):
                return line.removeprefix("data:")
    raise AssertionError("the feed has ended")


def test_a_server_of_another_version_asks_to_reload(server: ServerProcess, tab: Tab) -> None:
    snapshot = json.loads(first_event(server))
    other = snapshot | {"server": snapshot["server"] | {"version": "0.0.1-other", "boot": "other"}}
    told = iter([snapshot])

    def answer(route: Route) -> None:
        """A feed that ends at once, so that the page comes again."""
        data = json.dumps(next(told, other))
        route.fulfill(content_type="text/event-stream", body=f"id: some-1\nevent: snapshot\ndata: {data}\n\n")

    page = tab.page
    page.route("**/v1/events", answer)
    page.goto("/")
    notice = page.get_by_role("alert").filter(has_text="The server is of another version than this page.")
    expect(notice).to_be_visible()
    page.unroute("**/v1/events")
    notice.get_by_role("button", name="Reload").click()
    expect(feed_state(page, "live")).to_be_visible()
    expect(notice).to_have_count(0)


def test_a_server_with_no_room_for_another_reader_is_asked_again(browser: object, open_tab: OpenTab) -> None:
    with ServerProcess("--max-event-clients", "1") as server:
        server.started()
        page = open_tab(server.url, allowed=(UNAVAILABLE, *BROKEN_OFF)).page
        with server.http.stream("GET", "/v1/events") as other:
            assert other.status_code == 200
            page.goto("/")
            expect(page.get_by_role("alert").filter(has_text="No connection to the server")).to_be_visible()
        expect(feed_state(page, "live")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
