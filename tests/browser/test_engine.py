"""The engine's view beside eight busy clients: what is pressed is what is cancelled."""

import re
from collections.abc import Sequence

import pytest

from tests.browser.chromium import Locator, Page, Tab, expect
from tests.browser.conftest import N_SLOTS, OpenTab
from tests.browser.load import Client, Load, under_load
from tests.support.http_process import COMPLETIONS, LIMIT, ServerProcess, fresh_id

# Resolves after a person's slow press, and not before the page was drawn several times.
SHORTLY = """() => new Promise((done) => {
  const began = performance.now();
  let frames = 0;
  const frame = () => {
    frames += 1;
    if (performance.now() - began > 650 && frames > 5) done();
    else requestAnimationFrame(frame);
  };
  frame();
})"""
# Nor before the lists were drawn anew several times: something has to compute meanwhile.
SLOWLY = """() => import("/page/live.js").then(({ fleet: { first: model } }) => new Promise((done) => {
  const began = performance.now();
  let events = 0, frames = 0;
  model.events.subscribe(() => { events += 1; });
  const frame = () => {
    frames += 1;
    if (performance.now() - began > 650 && events > 5 && frames > 5) done();
    else requestAnimationFrame(frame);
  };
  frame();
}))"""


@pytest.fixture
def page(tab: Tab, load: Load) -> Page:
    page = tab.open("engine")
    for client in load.clients:
        expect(cancel_button(page, client)).to_have_text("Cancel")
    return page


def cancel_button(page: Page, client: Client) -> Locator:
    return page.get_by_role("button", name=f"cancel request {client.id}", exact=True)


def assert_only(cancelled: Client, load: Load) -> None:
    """Check that of all clients only this one was cancelled, and that the others' answers still grow."""
    assert cancelled.ended.wait(LIMIT)
    assert cancelled.ending == "explicit"
    assert_stopped_and_others_go_on([cancelled], load)


def assert_stopped_and_others_go_on(cancelled: Sequence[Client], load: Load) -> None:
    server = load.server
    for client in cancelled:
        assert server.wait_for(client.id, status="cancelled")["cancel_reason"] == "explicit"
    for client in load.clients:
        if client not in cancelled:
            before = server.request(client.id)["completion_tokens"]
            server.wait_for(client.id, status="running", completion_tokens=lambda n, before=before: n > before)
            assert not client.ended.is_set()


def test_a_click_cancels_that_request_and_no_other(page: Page, load: Load) -> None:
    button = cancel_button(page, load.clients[3])
    button.click()
    assert_only(load.clients[3], load)
    expect(button).to_have_text("Ended")
    expect(button).to_be_focused()
    row = page.get_by_role("listitem").filter(has=button)
    expect(row).to_contain_text("cancelled explicitly, compute stopped after")


@pytest.mark.long
def test_a_slow_press_cancels_what_it_began_on_though_the_list_changes(page: Page, load: Load) -> None:
    first, other, pressed = load.clients[0], load.clients[5], load.clients[4]
    cancel_button(page, pressed).hover()
    page.mouse.down()
    page.evaluate(SLOWLY)
    for client in (first, other):  # above it and below it
        load.server.cancel(client.id)
        ended = page.get_by_role("region", name="Ended").get_by_role("listitem")
        row = ended.filter(has=page.get_by_title(client.id))
        expect(cancel_button(page, client).or_(row).first).to_have_text("Ended")
    page.evaluate(SLOWLY)
    page.mouse.up()
    assert pressed.ended.wait(LIMIT)
    assert_stopped_and_others_go_on([first, other, pressed], load)


@pytest.mark.long
@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_key_cancels_that_request_and_the_focus_stays(page: Page, load: Load, key: str) -> None:
    button = cancel_button(page, load.clients[6])
    button.focus()
    button.press(key)
    assert_only(load.clients[6], load)
    expect(button).to_have_text("Ended")
    expect(button).to_be_focused()
    page.keyboard.press("Shift+Tab")  # from there on, not from the page's end: the link of its own row
    row = page.get_by_role("region", name="Live requests").get_by_role("listitem").filter(has=button)
    expect(row.get_by_role("link")).to_be_focused()


@pytest.mark.long
def test_a_request_is_opened_cancelled_and_closed_by_keys(page: Page, load: Load) -> None:
    client = load.clients[2]
    links = page.get_by_role("region", name="Live requests").get_by_role("link")
    links.and_(page.get_by_title(client.id)).press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=f"cancel request {client.id}").press("Enter")
    assert_only(client, load)
    expect(dialog).to_contain_text("cancelled explicitly, compute stopped after")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


@pytest.mark.long
def test_a_session_is_cancelled_as_a_whole(server: ServerProcess, tab: Tab) -> None:
    with under_load(server, ["mine", "mine", "mine", "other"]) as load:
        tab.open("engine").get_by_role("button", name="cancel session mine", exact=True).click()
        assert_stopped_and_others_go_on(load.clients[:3], load)


HOSTILE = ["<img src=x onerror=alert(1)>", '"><script>alert(2)</script>', "{{constructor}}${alert(3)}", "'\"&lt;b&gt;"]


@pytest.mark.long
def test_names_are_text_whatever_is_in_them(server: ServerProcess, open_tab: OpenTab) -> None:
    with under_load(server, HOSTILE):
        page = open_tab(server.url, allowed=("status of 404",)).open("engine")
        for session in HOSTILE:
            expect(page.get_by_role("region", name="Live requests").get_by_text(session, exact=True)).to_be_visible()
            expect(page.get_by_role("button", name=f"cancel session {session}", exact=True)).to_be_visible()
        page.get_by_role("button", name=f"cancel session {HOSTILE[0]}", exact=True).click()
        expect(page.get_by_text(f"session {HOSTILE[0]}: 1 cancelled")).to_have_count(1)
        page.goto("/#engine/%3Cimg%20src=x%20onerror=alert(4)%3E")
        expect(page.get_by_role("dialog", name="<img src=x onerror=alert(4)>")).to_contain_text("unknown")
        assert page.locator("main :is(img, script, b)").count() == 0


@pytest.mark.long
def test_the_timeline_tells_by_keys_what_was_superseded(server: ServerProcess, tab: Tab) -> None:
    page = tab.open("engine")
    body = {"prompt": "def f(", "max_tokens": 60_000, "stream": True, "supersede": "typing"}
    with server.http.stream("POST", "/v1/completions", json=body) as first:
        lines = first.iter_lines()  # kept: without it the client leaves
        assert next(lines)
        with server.http.stream("POST", "/v1/completions", json=body) as second:
            newest = second.headers["x-request-id"]
            ended = page.get_by_role("region", name="Ended")
            expect(ended.get_by_text("superseded by").first).to_be_visible()
            # The timeline is drawn a little behind the server. The newer one may be at its context's end by then.
            page.evaluate(SHORTLY)
            server.cancel(newest)
    timeline = page.get_by_role("application", name="Timeline of the slots")
    look_for(page.get_by_role("status").filter(has_text="superseded by"), timeline)


@pytest.mark.long
def test_a_page_that_is_opened_shows_what_was_computed_before(server: ServerProcess, tab: Tab) -> None:
    body = {"prompt": "def f(", "max_tokens": 8, "ignore_eos": True}
    before = server.http.post("/v1/completions", json=body).headers["x-request-id"]
    page = tab.open("engine")
    timeline = page.get_by_role("application", name="Timeline of the slots")
    page.evaluate(SHORTLY)  # the timeline is drawn a little behind the server
    look_for(page.get_by_role("status").filter(has_text=f"{before} decode: 8 tokens"), timeline)


# Latencies in the lists that are cut off, or not drawn at all.
CUT_LATENCIES = """() => [...document.querySelectorAll(".rows .latency:not(:empty)")].filter((element) => {
  const range = document.createRange();
  range.selectNodeContents(element.lastChild);
  const text = range.getBoundingClientRect(), row = element.closest("li").getBoundingClientRect();
  const fits = text.left >= row.left && text.right <= row.right + 0.5;
  return text.width === 0 || !fits || text.top < row.top || text.bottom > row.bottom + 0.5;
}).map((element) => element.closest("li").innerText)"""


@pytest.mark.long
def test_the_cancel_latency_is_in_sight_in_both_lists(page: Page, load: Load) -> None:
    for client in load.clients[:2]:
        cancel_button(page, client).click()
        expect(cancel_button(page, client)).to_have_text("Ended")
    page.mouse.move(0, 0)
    page.get_by_role("combobox").focus()  # the list of ended requests stands still while the focus is in it
    for width in (360, 390, 768, 1280, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator(".rows.live .latency").count() >= 2  # rows of an earlier test may still be there
        expect(page.locator(".rows.over .latency").filter(has_text="compute stopped after").first).to_be_visible()
        assert page.evaluate(CUT_LATENCIES) == []


def look_for(told: Locator, timeline: Locator) -> None:
    """Go over each lane's blocks by keys, the nearest one in time first, until one of them tells this."""
    for lane in range(N_SLOTS):
        for key in ("Escape", "ArrowLeft", *["ArrowDown"] * lane):
            timeline.press(key)
        for key in (*["ArrowRight"] * 15, *["ArrowLeft"] * 45):
            if told.count() == 1:
                return
            timeline.press(key)
    expect(told).to_have_count(1)


@pytest.mark.long
def test_the_times_of_a_short_request_are_whole_numbers_and_fill_its_bar(server: ServerProcess, tab: Tab) -> None:
    page = tab.open("engine")
    request_id = fresh_id()
    body = {"prompt": "def f(", "max_tokens": 3}
    assert server.http.post(COMPLETIONS, json=body, headers={"X-Request-Id": request_id}).status_code == 200
    page.goto(f"/#engine/{request_id}")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".span")).to_have_text(re.compile(r"^\d+ ms$|^\d+(\.\d)? s$"))
    missing = """(bar) => bar.getBoundingClientRect().right - bar.lastElementChild.getBoundingClientRect().right"""
    assert abs(dialog.locator(".phases").evaluate(missing)) < 2
    expect(dialog.locator(".facts")).not_to_contain_text("Owner")


@pytest.mark.long
def test_a_request_says_how_many_drafted_tokens_were_accepted(tab: Tab, server: ServerProcess) -> None:
    page = tab.open("engine")
    request_id = fresh_id()
    body = {"prompt": "def drafted(text):\n", "max_tokens": 30, "temperature": 0}
    for headers in ({}, {"X-Request-Id": request_id}):
        assert server.http.post(COMPLETIONS, json=body, headers=headers).status_code == 200
    page.goto(f"/#engine/{request_id}")
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".facts")).to_contain_text("30 of 30 tokens accepted: earlier answers 30 of 30")
    expect(dialog.locator(".story")).to_contain_text("30 of 30 drafted tokens were accepted")
    expect(page.get_by_role("list", name="Legend").get_by_text("decode with drafts")).to_be_visible()
