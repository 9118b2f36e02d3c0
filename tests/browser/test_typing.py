"""Type-ahead: a request at every key, of which only the newest is computed to its end."""

import json
import re
from collections.abc import Callable

import pytest

from tests.browser.chromium import Locator, Page, Route, Tab, expect
from tests.browser.load import FOREVER
from tests.support.http_process import ServerProcess

Ask = Callable[[str], None]


@pytest.fixture
def page(tab: Tab, server: ServerProcess) -> Page:
    page = tab.open("try")
    editor(page).press("Control+End")
    return page


@pytest.fixture
def endless(page: Page) -> None:
    """Suggestions that end only when they are cancelled, however slow the machine is."""

    def lengthen(route: Route) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"max_tokens": FOREVER, "stop": []}))

    page.route("**/v1/completions", lengthen)


def editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Code, with superseding")


def grey(page: Page) -> Locator:
    """Grey text is for the eye; a status tells it to others, once it stands."""
    return page.get_by_role("region", name="With superseding", exact=True).locator(".try-ghost")


def rows(page: Page) -> Locator:
    return page.get_by_role("region", name="Requests with superseding").locator("tbody tr")


def newest(page: Page, fate: str) -> None:
    expect(rows(page).first).to_contain_text(fate)


def test_each_key_supersedes_the_one_before_and_tab_accepts_the_newest(page: Page, server: ServerProcess) -> None:
    editor(page).press_sequentially("with open")
    newest(page, "finished")
    before, suggestion = editor(page).input_value(), grey(page).text_content()
    assert before.endswith("with open")
    assert suggestion
    editor(page).press("Tab")
    expect(editor(page)).to_have_value(before + suggestion)
    expect(editor(page)).to_be_focused()
    expect(grey(page)).to_be_empty()


@pytest.mark.long
@pytest.mark.usefixtures("endless")
def test_superseded_requests_are_seen_here_in_the_list_and_by_the_server(page: Page, server: ServerProcess) -> None:
    for key in "abc":
        editor(page).press(key)
        newest(page, "answering")
    expect(rows(page).filter(has_text="superseded")).to_have_count(2)
    expect(rows(page).filter(has_text="compute stopped after")).to_have_count(2)
    ids = [rows(page).nth(n).locator("td").first.get_attribute("title") for n in range(3)]
    seen = [server.request(str(request_id)) for request_id in ids]
    assert [one.get("cancel_reason") for one in seen] == [None, "superseded", "superseded"]
    page.get_by_role("link", name="Engine").click()
    ended = page.get_by_role("region", name="Ended").get_by_role("listitem")
    expect(ended.filter(has=page.get_by_title(str(ids[1]), exact=True))).to_contain_text("superseded by")


@pytest.mark.long
@pytest.mark.usefixtures("endless")
def test_escape_cancels_and_takes_the_grey_text_away(page: Page, server: ServerProcess) -> None:
    editor(page).press("x")
    expect(grey(page)).not_to_be_empty()
    editor(page).press("Escape")
    newest(page, "cancelled explicitly")
    expect(grey(page)).to_be_empty()
    expect(editor(page)).to_be_focused()
    server.wait_idle()


@pytest.mark.long
@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("pane", ["with", "without"])
def test_leaving_the_view_cancels_all(page: Page, server: ServerProcess, pane: str) -> None:
    typed = page.get_by_role("textbox", name=f"Code, {pane}" + (" superseding" if pane == "with" else ""), exact=True)
    typed.press("Control+End")
    typed.press_sequentially("ab")
    requests = page.get_by_role("region", name=f"Requests {pane} superseding")
    expect(requests.get_by_text("answering").first).to_be_visible()
    page.get_by_role("link", name="Engine").click()
    server.wait_idle()


@pytest.mark.long
def test_a_plain_completion_is_stopped(page: Page, server: ServerProcess) -> None:
    page.get_by_label("Token limit").fill(str(FOREVER))
    page.get_by_role("button", name="Complete", exact=True).click()
    section = page.get_by_role("region", name="Completion", exact=True)
    expect(section.get_by_text(re.compile(r"\d+ tokens"))).to_be_visible()
    section.get_by_role("button", name="Stop").click()
    expect(section.get_by_role("status")).to_contain_text(re.compile(r"explicitly by you.*compute stopped after"))
    server.wait_idle()


@pytest.mark.long
def test_a_completion_is_compared_with_and_without_drafts(page: Page) -> None:
    section = page.get_by_role("region", name="Completion", exact=True)
    section.get_by_label("Token limit").fill("40")
    section.get_by_label("Temperature").fill("0")
    status = section.get_by_role("status")

    def complete(*, drafts: bool) -> None:
        section.get_by_label("with drafts").set_checked(drafts)
        section.get_by_role("button", name="Complete", exact=True).click()

    complete(drafts=False)
    expect(status).to_contain_text("ended")
    answer = section.locator("pre").inner_text()
    complete(drafts=True)
    expect(status).to_contain_text("40 of 40 drafted tokens accepted")
    assert section.locator("pre").inner_text() == answer
    expect(section.get_by_text("Without drafts: 40 tokens")).not_to_contain_text("accepted")
