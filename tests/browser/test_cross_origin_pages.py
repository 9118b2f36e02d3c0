"""Pages of others in a real browser: what they try reaches nobody's requests, and tells nothing, unless allowed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser.chromium import Browser, Page, Response
from tests.browser.conftest import OpenTab
from tests.support.http_process import COMPLETIONS, LIMIT, ServerProcess, fresh_id
from tests.support.marks import mostly_long
from tests.support.stub_server import Handler, StubServer

EVIL = "evil.example"  # for this browser it is this machine
SANDBOX = "/sandbox"  # a page that has no origin
ENDLESS = {"prompt": "def f(", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
ANSWERED = "fetch(url, options).then((answer) => answer.status || answer.type, () => 'failed')"
FETCH = f"([url, options]) => {ANSWERED}"
SUBMIT = """(url) => {
    const form = document.createElement('form');
    form.method = 'post';
    form.action = url;
    form.target = document.body.appendChild(Object.assign(document.createElement('iframe'), {name: 'hidden'})).name;
    document.body.append(form);
    form.submit();
}"""
EMBED = "([url, tag, name]) => document.body.append(Object.assign(document.createElement(tag), {[name]: url}))"
LISTEN = "([url]) => { globalThis.source = new EventSource(url); }"
BEACON = "(url) => navigator.sendBeacon(url)"
NO_CORS = {"method": "POST", "mode": "no-cors"}


class Blank(Handler):
    def do_GET(self) -> None:  # noqa: N802 - named by the library
        policy = {"Content_Security_Policy": "sandbox allow-scripts allow-forms"} if self.path == SANDBOX else {}
        page = b"<!doctype html><title>a page</title><link rel=icon href=data:,><body>"
        self.reply(200, page, Content_Type="text/html", **policy)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    with StubServer(Blank) as pages:
        yield pages.server_port


class Visit:
    """A tab on a page of somebody's, which keeps the answers of one server."""

    def __init__(self, browser: Browser, server: ServerProcess, url: str) -> None:
        self._context = browser.new_context()
        self._server = server
        self.page: Page = self._context.new_page()
        self.page.goto(url)

    def answer_to(self, script: str, argument: Any, path: str, method: str) -> int:
        """The status of what the server answers to what a script of the page begins.

        It is begun again if no answer comes: Chromium drops what it has begun when the machine's network changes, as it
        does when tests beside this one make interfaces.
        """

        def is_answer(answer: Response) -> bool:
            url = f"127.0.0.1:{self._server.port}", path
            return urlsplit(answer.url)[1:3] == url and answer.request.method == method

        from playwright.sync_api import TimeoutError as NoAnswer

        for seconds in (10, 20, LIMIT):
            with suppress(NoAnswer):
                with self.page.expect_response(is_answer, timeout=seconds * 1e3) as answered:
                    self.page.evaluate(script, argument)
                return int(answered.value.status)
        raise AssertionError(f"no answer to {method} {path}")

    def close(self) -> None:
        self._context.close()


@contextmanager
def visiting(browser: Browser, server: ServerProcess, url: str) -> Iterator[Visit]:
    visit = Visit(browser, server, url)
    try:
        yield visit
    finally:
        visit.close()


@pytest.fixture(params=mostly_long(["another site", "another port", "no origin"], "another site"))
def visit(request: pytest.FixtureRequest, browser: Browser, server: ServerProcess, elsewhere: int) -> Iterator[Visit]:
    url = {
        "another site": f"http://{EVIL}:{elsewhere}/",
        "another port": f"http://127.0.0.1:{elsewhere}/",
        "no origin": f"http://{EVIL}:{elsewhere}{SANDBOX}",
    }[request.param]
    with visiting(browser, server, url) as visit:
        yield visit


@contextmanager
def victim(server: ServerProcess) -> Iterator[str]:
    """A request of the session ``editor``, which must live as long as the block."""
    request_id = fresh_id()
    headers = {"X-Session-Id": "editor", "X-Request-Id": request_id}
    with server.http.stream("POST", COMPLETIONS, json=ENDLESS, headers=headers):
        yield request_id
        # Nobody reads it: it may be paused, and wait for a slot for a moment when it goes on.
        seen = server.request(request_id)
        assert (seen["status"] in ("waiting", "running"), seen["cancel_reason"]) == (True, None)
    server.wait_for(request_id, status="cancelled", cancel_reason="disconnect")


def test_a_page_of_another_cancels_nothing(visit: Visit, server: ServerProcess) -> None:
    with victim(server) as request_id:
        for path in ("/v1/sessions/editor/cancel", f"/v1/requests/{request_id}/cancel", "/v1/requests/cancel"):
            url = f"{server.url}{path}"
            assert visit.answer_to(FETCH, [url, NO_CORS], path, "POST") == 403
            assert visit.answer_to(BEACON, url, path, "POST") == 403
            assert visit.answer_to(SUBMIT, url, path, "POST") == 403


@pytest.mark.long
def test_a_page_of_another_holds_no_id_and_begins_nothing(visit: Visit, server: ServerProcess) -> None:
    mine = fresh_id()
    path = f"/v1/requests/{mine}/cancel"
    assert visit.answer_to(FETCH, [f"{server.url}{path}?hold=60", NO_CORS], path, "POST") == 403
    short = {"prompt": "x", "max_tokens": 1}
    assert server.http.post(COMPLETIONS, json=short, headers={"X-Request-Id": mine}).status_code == 200
    body = NO_CORS | {"body": '{"prompt": "x", "max_tokens": 1}'}
    assert visit.answer_to(FETCH, [f"{server.url}{COMPLETIONS}", body], COMPLETIONS, "POST") == 403
    # What a page must ask for first is not granted.
    assert visit.page.evaluate(FETCH, [f"{server.url}/v1/requests/{mine}", {"method": "DELETE"}]) == "failed"


FETCHES: dict[str, tuple[str, list[Any]]] = {
    "fetch": (FETCH, [{}]),
    "fetch without CORS": (FETCH, [{"mode": "no-cors"}]),
    "feed": (LISTEN, []),
    "image": (EMBED, ["img", "src"]),
    "script": (EMBED, ["script", "src"]),
    "frame": (EMBED, ["iframe", "src"]),
    "object": (EMBED, ["object", "data"]),
    "video": (EMBED, ["video", "src"]),
}


@pytest.mark.long
@pytest.mark.parametrize("way", FETCHES)
def test_a_page_of_another_is_told_nothing(visit: Visit, server: ServerProcess, way: str) -> None:
    path = f"/v1/requests/{fresh_id()}"  # of which a server that tells anything would say that it is unknown
    script, arguments = FETCHES[way]
    visit.page.evaluate(script, [server.url + path, *arguments])
    server.wait_for_log(f'"GET {path}" 403')


@pytest.mark.long
def test_a_link_leads_to_the_page_and_to_nothing_else(browser: Browser, server: ServerProcess, elsewhere: int) -> None:
    follow = "(url) => { location.href = url; }"
    for path, status in (("/", 200), ("/docs", 200), ("/v1/requests", 403)):
        with visiting(browser, server, f"http://{EVIL}:{elsewhere}/") as visit:
            assert visit.answer_to(follow, server.url + path, path, "GET") == status


@pytest.mark.long
def test_a_name_that_was_rebound_reaches_nothing(browser: Browser, server: ServerProcess) -> None:
    page = browser.new_context().new_page()
    assert page.goto(f"http://{EVIL}:{server.port}/").status == 421
    # To the browser the server is the page's own, so that a page could read all answers.
    with victim(server) as request_id:
        for path, options in (
            ("/v1/requests", {}),
            ("/health", {}),
            ("/slots", {}),
            (COMPLETIONS, {"method": "POST", "body": "{}", "headers": {"Content-Type": "application/json"}}),
            ("/v1/sessions/editor/cancel", {"method": "POST"}),
            (f"/v1/requests/{request_id}", {"method": "DELETE"}),
        ):
            assert page.evaluate(FETCH, [path, options]) == 421
    page.context.close()


@pytest.mark.long
def test_a_page_that_is_named_uses_the_server(browser: Browser, elsewhere: int) -> None:
    origin = f"http://{EVIL}:{elsewhere}"
    asked = {
        "method": "POST",
        "body": '{"prompt": "x", "max_tokens": 1}',
        "headers": {"Content-Type": "application/json"},
    }
    with ServerProcess("--cors-origins", origin) as server:
        server.started()
        with visiting(browser, server, origin) as visit:
            assert visit.page.evaluate(FETCH, [f"{server.url}{COMPLETIONS}", asked]) == 200
            assert visit.page.evaluate(FETCH, [f"{server.url}/v1/requests", {}]) == 200
            assert visit.answer_to(LISTEN, [f"{server.url}/v1/events"], "/v1/events", "GET") == 200
        with visiting(browser, server, f"http://other.example:{elsewhere}/") as visit:
            assert visit.page.evaluate(FETCH, [f"{server.url}/v1/requests", {}]) == "failed"


@pytest.mark.long
def test_the_page_works_by_each_name_of_the_server(browser: object, open_tab: OpenTab) -> None:
    with ServerProcess("--allowed-hosts", "chat.example") as server:
        server.started()
        for name in ("localhost", "127.0.0.1", "chat.example"):
            page = open_tab(f"http://{name}:{server.port}", allowed=("status of 404", "net::ERR_")).open()
            # A cancel is a POST of the page's own.
            assert page.evaluate(FETCH, ["/v1/sessions/nobody/cancel", {"method": "POST"}]) == 404
