"""Pictures in the chat: chosen, pasted and dropped, made small enough, sent, kept; and why none are taken."""

import base64
import random
import re
from typing import Any

import pytest

from pyllmcancel.media.pictures import Size, check_picture
from pyllmcancel.pausing import no_pause
from tests.browser.chromium import Page, Route, Tab, expect
from tests.browser.conftest import OpenTab
from tests.browser.scenes import answer_with, bring, choose, file, sent_by
from tests.support.http_process import ServerProcess
from tests.support.marks import mostly_long
from tests.support.media_files import bmp, png

PNG = png(8, 8)


def with_eyes(route: Route) -> None:
    response = route.fetch()
    route.fulfill(response=response, json=response.json() | {"modalities": {"vision": True, "audio": False}})


@pytest.fixture
def page(tab: Tab) -> Page:
    """A chat with a model that takes pictures, and describes them."""
    tab.page.route("**/props", with_eyes)
    page = tab.open("chat")
    expect(page.get_by_role("button", name="Add images")).to_be_visible()
    answer_with(page, "I see it.")
    return page


def parts_sent(page: Page, text: str) -> list[dict[str, Any]]:
    return sent_by(page, text)[-1]["content"]


def bytes_of(part: dict[str, Any]) -> bytes:
    assert part["type"] == "image_url"
    return base64.b64decode(part["image_url"]["url"].partition("base64,")[2])


def size_of(part: dict[str, Any]) -> Size:
    return check_picture(bytes_of(part), 1 << 25, no_pause)


@pytest.mark.parametrize("how", mostly_long(["choose", "paste", "drop"], "paste"))
def test_a_picture_is_sent_as_it_is_and_shown_in_the_message(page: Page, how: str) -> None:
    if how == "choose":
        choose(page, "images", file(PNG))
    else:
        bring(page, how, PNG)
    expect(page.locator(".composer").get_by_role("img", name="Image 1")).to_be_visible()
    text, picture = parts_sent(page, "What is this?")
    assert text == {"type": "text", "text": "What is this?"}
    assert bytes_of(picture) == PNG
    expect(page.get_by_role("article", name="You").get_by_role("img", name="Image 1")).to_be_visible()
    expect(page.get_by_role("button", name="Remove image")).to_have_count(0)
    expect(page.get_by_role("article", name="Answer")).to_contain_text("I see it.")


@pytest.mark.long
def test_a_picture_that_was_removed_is_not_sent(page: Page) -> None:
    choose(page, "images", file(PNG), file(png(4, 4), "b.png"))
    page.get_by_role("button", name="Remove image 1").click()
    _, picture = parts_sent(page, "And this?")
    assert size_of(picture) == (4, 4)


@pytest.mark.long
def test_a_picture_alone_is_a_message(page: Page) -> None:
    choose(page, "images", file(PNG), shown="Image 1")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Send").click()
    (picture,) = sent.value.post_data_json["messages"][-1]["content"]
    assert bytes_of(picture) == PNG


@pytest.mark.long
def test_a_picture_is_kept_and_sent_again_after_a_reload(page: Page) -> None:
    choose(page, "images", file(PNG), shown="Image 1")
    parts_sent(page, "What is this?")
    expect(page.locator("article:not([aria-busy=true])", has_text="I see it.")).to_be_visible()  # and it is kept
    page.reload()
    expect(page.get_by_role("article", name="You").get_by_role("img", name="Image 1")).to_be_visible()
    first, _, last = sent_by(page, "And now?")
    assert bytes_of(first["content"][1]) == PNG
    assert last["content"] == "And now?"


@pytest.mark.long
def test_a_large_picture_is_made_smaller_before_it_is_sent(page: Page) -> None:
    noise = random.Random(7)
    pixels = b"".join(b"\0" + noise.randbytes(3 * 3_000) for _ in range(150))
    choose(page, "images", file(png(3_000, 150, pixels=pixels)), shown="Image 1")
    _, picture = parts_sent(page, "What is this?")
    assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert size_of(picture) == (2_048, 102)


@pytest.mark.long
def test_a_picture_that_the_server_does_not_take_is_sent_as_png(page: Page) -> None:
    choose(page, "images", file(bmp(6, 5), "a.bmp", "image/bmp"), shown="Image 1")
    _, picture = parts_sent(page, "What is this?")
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert size_of(picture) == (6, 5)


@pytest.mark.long
def test_a_damaged_picture_and_one_of_no_known_kind_are_refused_in_words(page: Page) -> None:
    choose(page, "images", file(b"no picture", "broken.png"))
    expect(page.get_by_role("alert").get_by_text("broken.png is damaged")).to_be_visible()
    choose(page, "images", *[file(PNG, f"{n}.png") for n in range(9)])
    expect(page.get_by_role("alert").get_by_text("8 images at most")).to_be_visible()


@pytest.mark.long
def test_a_text_beside_a_pasted_picture_of_it_is_pasted_as_text_where_no_picture_is_taken(tab: Tab) -> None:
    page = tab.open("chat")
    bring(page, "paste", PNG, text="a cell of a table")
    expect(page.get_by_role("img", name="Image 1")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.long
def test_a_model_that_takes_no_pictures_says_so(tab: Tab) -> None:
    page = tab.open("chat")
    expect(page.get_by_role("button", name="Add text files")).to_be_visible()
    expect(page.get_by_role("button", name="Add images")).to_have_count(0)
    bring(page, "paste", PNG)
    expect(page.get_by_role("alert").get_by_text(re.compile(r"a\.png is an image.*no projector"))).to_be_visible()
    expect(page.get_by_role("img", name="Image 1")).to_have_count(0)
    page.get_by_role("textbox", name="Message").press_sequentially("W")
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.long
def test_what_the_server_says_against_a_picture_is_shown(open_tab: OpenTab, server: ServerProcess) -> None:
    tab = open_tab(server.url, allowed=("status of 413",))
    tab.page.route("**/props", with_eyes)
    page = tab.open("chat")
    error = {"error": {"message": "picture 1: it has 9 x 9 pixels, but at most 4", "code": "media_too_large"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=413, json=error))
    choose(page, "images", file(PNG), shown="Image 1")
    assert len(parts_sent(page, "What is this?")) == 2
    expect(page.get_by_role("article", name="Answer")).to_contain_text("icture 1: it has 9 x 9 pixels")
