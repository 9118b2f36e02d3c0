"""A server with API keys: the page asks for one, in itself, and once."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import expect
from tests.browser.conftest import OpenTab
from tests.support.http_process import ServerProcess

pytestmark = pytest.mark.long

UNAUTHORIZED = "status of 401"


@pytest.fixture(scope="module")
def locked(browser: object) -> Iterator[ServerProcess]:
    with ServerProcess("--api-key", "right") as process:
        yield process.started()


def test_a_wrong_key_is_told_once_and_the_right_one_serves_everything(locked: ServerProcess, open_tab: OpenTab) -> None:
    tab = open_tab(locked.url, allowed=(UNAUTHORIZED,))
    page = tab.page
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status == 401 else None)
    page.goto("/#engine")
    dialog = page.get_by_role("dialog", name="This server needs an API key")
    key = dialog.get_by_label("API key")
    key.fill("wrong")
    key.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("That key was refused.")
    expect(page.get_by_role("dialog")).to_have_count(1)
    key.fill("right")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
    n_refused = len(refused)
    for view in ("try", "chat", "engine"):
        page.get_by_role("navigation", name="Views").locator(f"a[href='#{view}']").click()
        expect(page.locator("main")).to_be_visible()
    assert (
        page.evaluate("import('/page/lib/api.js').then(({call}) => call('v1/requests')).then(({data}) => data.length)")
        >= 0
    )
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert len(refused) == n_refused


def test_without_a_key_the_page_stays_and_says_what_is_wrong(locked: ServerProcess, open_tab: OpenTab) -> None:
    page = open_tab(locked.url, allowed=(UNAUTHORIZED,)).page
    page.goto("/#engine")
    page.get_by_role("dialog").get_by_role("button", name="Continue without a key").click()
    expect(page.get_by_role("alert").filter(has_text="No connection to the server")).to_be_visible()
