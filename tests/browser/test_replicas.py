"""The engine's view of one of two servers: requests of both, and the figures of the one that is chosen."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import expect
from tests.browser.conftest import OpenTab
from tests.browser.load import Load, under_load
from tests.browser.replicas import NAMES, serving_two
from tests.browser.scenes import LOOKS, what_is_too_wide
from tests.support.http_process import LIMIT, ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page


@pytest.fixture(scope="module")
def servers(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    assert browser.is_connected()
    with serving_two(tmp_path_factory.mktemp("models"), "--parallel", "4", "--kv-unified") as found:
        yield found


@pytest.fixture
def loads(servers: list[ServerProcess]) -> Iterator[list[Load]]:
    """Start a request on each server, with a session of its own."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(under_load(server, [f"in-{name}"])) for server, name in zip(servers, NAMES, strict=True)
        ]


@pytest.fixture
def page(open_tab: OpenTab, servers: list[ServerProcess], loads: list[Load]) -> Page:
    """The page of the first server, with the requests of both in sight."""
    page = open_tab(servers[0].url).open("engine")
    for load in loads:
        for client in load.clients:
            expect(row(page, client.id)).to_be_visible()
    return page


def row(page: Page, request_id: str) -> Locator:
    button = page.get_by_role("button", name=f"cancel request {request_id}", exact=True)
    return page.get_by_role("region", name="Live requests").get_by_role("listitem").filter(has=button)


def test_each_request_names_its_replica_and_is_cancelled_wherever_it_is(page: Page, loads: list[Load]) -> None:
    for load, name in zip(loads, NAMES, strict=True):
        (client,) = load.clients
        expect(row(page, client.id)).to_contain_text(f"on replica {name}")
    (theirs,), (ours,) = loads[1].clients, loads[0].clients
    row(page, theirs.id).get_by_role("button").click()
    assert theirs.ended.wait(LIMIT)
    assert theirs.ending == "explicit"
    assert not ours.ended.is_set()
    ended = page.get_by_role("region", name="Ended").get_by_role("listitem").filter(has_text="on replica south")
    expect(ended).to_contain_text("cancelled")


def test_the_figures_and_slots_are_those_of_the_replica_that_is_chosen(page: Page) -> None:
    expect(page.get_by_role("heading", name="Slots over time of north")).to_be_visible()
    page.get_by_role("region", name="Replicas").get_by_role("button", name="south").click()
    expect(page.get_by_role("region", name="Replicas").get_by_role("button", name="south")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.get_by_role("heading", name="Slots over time of south")).to_be_visible()
    sessions = page.get_by_role("region", name="Queue and sessions of south")
    expect(sessions.get_by_text("in-south")).to_be_visible()
    expect(sessions.get_by_text("in-north")).to_have_count(0)
    for look in LOOKS:
        look.show(page)
        assert what_is_too_wide(page) == []


def test_a_request_elsewhere_can_be_opened(page: Page, loads: list[Load]) -> None:
    (client,) = loads[1].clients
    row(page, client.id).get_by_role("link").click()
    panel = page.get_by_role("dialog")
    expect(panel.get_by_text("south", exact=True)).to_be_visible()
    panel.get_by_role("button", name=f"cancel request {client.id}").click()
    assert client.ended.wait(LIMIT)
    expect(panel.get_by_text("cancelled").first).to_be_visible()


def test_a_replica_that_hangs_is_said_to_be_lost_and_is_there_again(page: Page, servers: list[ServerProcess]) -> None:
    card = page.get_by_role("region", name="Replicas").get_by_role("button", name="south")
    servers[1].signal(signal.SIGSTOP)
    try:
        expect(card.get_by_text("lost", exact=True)).to_be_visible()
    finally:
        servers[1].signal(signal.SIGCONT)
    expect(card.get_by_text("lost", exact=True)).to_have_count(0)
    expect(card).to_contain_text("of 4 slots")
