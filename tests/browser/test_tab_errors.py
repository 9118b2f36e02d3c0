"""The other tests rely on this: a tab notes each thing that must not happen in the page."""

from tests.browser.chromium import Browser, Tab
from tests.support.http_process import ServerProcess


def test_a_tab_notes_errors_dialogs_other_hosts_and_forbidden_things(server: ServerProcess, browser: Browser) -> None:
    tab = Tab(browser, server.url)
    page = tab.page
    page.goto("/")
    with tab.context.expect_event("request", lambda request: "elsewhere" in request.url):
        page.evaluate("void open('http://127.0.0.1:9/elsewhere')")
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">')")
    page.evaluate("alert('hello')")
    with page.expect_event("pageerror"):
        page.evaluate("setTimeout(() => { throw new Error('thrown'); })")
    faults = "\n".join(tab.faults)
    tab.close()
    for expected in ("a request to http://127.0.0.1:9/elsewhere", "style-src", "alert 'hello'", "not caught: thrown"):
        assert expected in faults
