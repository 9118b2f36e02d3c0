"""The page of a server of several models: what they do is shown, and a load is ended where it is seen."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from tests.browser import installation
from tests.browser.chromium import Browser, Locator, Page, Tab, expect
from tests.browser.conftest import OpenTab
from tests.browser.load import under_load
from tests.browser.models import Models, serving_models
from tests.browser.scenes import DRAWN, LOOKS, Look, say, what_is_too_wide
from tests.browser.test_layout import serious_faults
from tests.support.http_process import LIMIT, until

pytestmark = pytest.mark.long


CANCELLED = r"status of 499"  # the console reports each answer that is an error


@pytest.fixture(scope="module")
def models(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    assert browser.is_connected()
    with serving_models(tmp_path_factory.mktemp("models")) as found:
        yield found


@pytest.fixture
def tab(models: Models, open_tab: OpenTab) -> Tab:
    for name in ("chat", "coder", "slow"):
        models.unload(name)
        models.until_state(name, "unloaded")
    return open_tab(models.server.url, allowed=(CANCELLED,))


def card(page: Page, model: str) -> Locator:
    return page.get_by_role("region", name="Models").get_by_role("group", name=model, exact=True)


def picker(page: Page) -> Locator:
    return page.get_by_role("button", name="Model:")


def choose(page: Page, model: str) -> None:
    picker(page).click()
    page.get_by_role("menuitemradio", name=model).click()
    expect(picker(page)).to_contain_text(model)


def lane_by_keys(page: Page, n_down: int) -> str:
    """Say which block of a lane is told of; none before it has been drawn."""
    canvas = page.get_by_role("application", name="Timeline of the slots")
    for key in ("Escape", "ArrowLeft", *["ArrowDown"] * n_down):
        canvas.press(key)
    page.evaluate(DRAWN)
    return page.locator(".timeline-lanes [role=status]").inner_text()


def starts_with(lane: str, told: str) -> bool:
    return told.startswith(lane)


def check_look(page: Page, look: Look) -> None:
    assert what_is_too_wide(page) == [], look
    if look.width in {360, 1280}:
        assert serious_faults(page) == [], look


def has_ended(models: Models, model: str) -> None:
    """Its load is over, and no process is left of it."""
    models.until_state(model, "unloaded")
    until(lambda: models.processes(model), lambda found: not found)


def test_models_are_loaded_and_unloaded_in_the_engines_view(tab: Tab, models: Models) -> None:
    page = tab.open("engine")
    expect(page.get_by_role("heading", name="Slots over time")).to_have_count(0)
    for name in ("chat", "coder"):
        card(page, name).get_by_role("button", name=f"Load {name}").click()
        expect(card(page, name).get_by_text("ready")).to_be_visible()
        expect(card(page, name)).to_contain_text("0 of 3 slots")
    expect(page.get_by_role("heading", name="Slots over time")).to_be_visible()
    card(page, "coder").get_by_role("button", name="coder", exact=True).click()
    expect(page.get_by_role("region", name="Queue and sessions of coder")).to_be_visible()
    card(page, "chat").get_by_role("button", name="Unload chat").click()
    expect(card(page, "chat").get_by_text("not loaded")).to_be_visible()
    has_ended(models, "chat")
    # The feed goes on though the process that it was read from has ended.
    expect(page.get_by_role("banner").get_by_text("live", exact=True)).to_be_visible()
    expect(card(page, "coder")).to_contain_text("0 of 3 slots")


def test_each_model_has_its_lanes_and_each_request_its_model(tab: Tab, models: Models) -> None:
    models.load("chat")
    models.load("coder")
    models.until_state("chat", "loaded")
    models.until_state("coder", "loaded")
    page = tab.open("engine")
    with (
        under_load(models.server, ["agent"], model="chat") as chats,
        under_load(models.server, ["editor"], model="coder") as edits,
    ):
        live = page.get_by_role("region", name="Live requests").get_by_role("listitem")
        for load, name in ((chats, "chat"), (edits, "coder")):
            button = page.get_by_role("button", name=f"cancel request {load.clients[0].id}", exact=True)
            expect(live.filter(has=button)).to_contain_text(f"on replica {name}")
        # By keys: the first lane of a slot, and the one four below it, behind two more slots and the other's queue.
        for n_down, lane in ((0, "chat, slot 0: "), (4, "coder, slot 0: ")):
            until(partial(lane_by_keys, page, n_down), partial(starts_with, lane))
        page.get_by_role("application", name="Timeline of the slots").press("Escape")
        page.evaluate(installation.axe_source())
        for look in LOOKS:
            look.show(page)
            check_look(page, look)


def test_a_load_is_cancelled_in_the_engines_view(tab: Tab, models: Models) -> None:
    page = tab.open("engine")
    card(page, "slow").get_by_role("button", name="Load slow").click()
    expect(card(page, "slow").get_by_role("progressbar")).to_have_attribute("aria-valuetext", "loading 50 %")
    assert models.processes("slow")
    card(page, "slow").get_by_role("button", name="Cancel the load slow").click()
    expect(card(page, "slow").get_by_text("not loaded")).to_be_visible()
    has_ended(models, "slow")


def test_a_failure_is_shown_with_its_last_lines(tab: Tab) -> None:
    broken = card(tab.open("engine"), "broken")
    broken.get_by_role("button", name=re.compile("Load|Try again")).click()
    expect(broken.get_by_text("failed", exact=True)).to_be_visible()
    expect(broken).to_contain_text("is not a GGUF file")
    broken.get_by_text("The last lines of its log").click()
    expect(broken.locator("pre")).to_contain_text("is not a GGUF file")
    expect(broken.get_by_role("button", name="Try again")).to_be_visible()


def test_a_chat_is_answered_by_the_model_that_is_chosen_and_remembered(tab: Tab) -> None:
    page = tab.open("chat")
    expect(picker(page)).to_contain_text("chat, not loaded")
    choose(page, "coder")
    page.reload()
    expect(picker(page)).to_contain_text("coder")
    with page.expect_response("**/v1/chat/completions") as answered:
        say(page, "Tell me a long story")
    assert '"model":"coder"' in (answered.value.request.post_data or "")
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_contain_text(re.compile(r"\w{3}"))
    expect(picker(page)).to_contain_text("coder, ready")
    page.keyboard.press("Escape")
    expect(answer).to_contain_text("Cancelled explicitly by you · compute stopped after")
    page.get_by_role("button", name="New conversation").first.click()
    expect(picker(page)).to_contain_text("coder")


def test_a_chat_that_waits_shows_the_load_and_its_cancel_ends_it(tab: Tab, models: Models) -> None:
    page = tab.open("chat")
    choose(page, "slow")
    say(page, "Tell me a long story")
    answer = page.get_by_role("article", name="Answer")
    expect(answer.get_by_role("progressbar")).to_have_attribute("aria-valuetext", "loading 50 %")
    assert models.processes("slow")
    answer.get_by_role("button", name="Cancel the load of slow").click()
    expect(answer).to_contain_text("Cancelled explicitly by you, before the model was loaded")
    has_ended(models, "slow")
    expect(picker(page)).to_contain_text("slow, not loaded")


def test_a_request_that_waits_is_listed_and_cancelled(tab: Tab, models: Models) -> None:
    page = tab.open("engine")
    with under_load(models.server, ["batch"], model="slow") as load:
        (client,) = load.clients
        button = page.get_by_role("button", name=f"cancel request {client.id}", exact=True)
        row = page.get_by_role("region", name="Live requests").get_by_role("listitem").filter(has=button)
        expect(row).to_contain_text("loading")
        expect(card(page, "slow")).to_contain_text("1 request waits for it")
        button.click()
        assert client.ended.wait(LIMIT)
        expect(row).to_contain_text("left before its model was loaded")
    has_ended(models, "slow")


def test_the_menu_of_models_fits_and_is_left_by_a_key(tab: Tab, models: Models) -> None:
    page = tab.open("chat")
    models.load("broken")
    page.evaluate(installation.axe_source())
    for look in LOOKS:
        look.show(page)
        picker(page).focus()
        picker(page).press("Enter")
        expect(page.get_by_role("menuitemradio", name="broken failed")).to_be_visible()
        expect(page.get_by_role("menuitemradio", checked=True)).to_be_focused()
        check_look(page, look)
        page.keyboard.press("Escape")
        expect(page.get_by_role("menuitemradio").first).to_be_hidden()
        expect(picker(page)).to_be_focused()
