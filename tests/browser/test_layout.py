"""Every view, light and dark, on telephones and on wide screens: all of it is in reach, and nothing hides from axe."""

import re
from typing import cast

import pytest

from pyllmcancel.server.page import page_files
from tests.browser import installation
from tests.browser.chromium import Page, Tab, expect
from tests.browser.load import under_load
from tests.browser.scenes import LOOKS, SCHEMES, SESSIONS, VIEWS, Look, Scheme, View, enliven, what_is_too_wide
from tests.support.http_process import ServerProcess

AXE = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html}: ${failureSummary}`));
}"""


STYLES = ("base", "engine", "typing", "chat")
BADGES = """(states) => {
  const make = (tag, fields) => Object.assign(document.createElement(tag), fields);
  const card = make("p", { className: "card" });
  card.append(...states.map((state) => make("span", { className: `badge ${state}`, textContent: state })));
  document.querySelector("main").append(card);
}"""


def serious_faults(page: Page) -> list[str]:
    return cast("list[str]", page.evaluate(AXE))


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_every_window_and_serves_all(server: ServerProcess, tab: Tab, view: View, scheme: Scheme) -> None:
    with under_load(server, SESSIONS):
        page = tab.open(view)
        enliven(page, view)
        page.evaluate(installation.axe_source())
        faults: list[str] = []
        for look in (one for one in LOOKS if one.scheme == scheme):
            look.show(page)
            found = what_is_too_wide(page) + (what_is_out_of_sight(page, look) if view == "engine" else [])
            if look.width in {360, 1280}:
                found += serious_faults(page)
            faults += [f"{look}: {fault}" for fault in found]
        assert not faults, "\n".join(faults)


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_badge_can_be_read(tab: Tab, scheme: Scheme) -> None:
    page = tab.open()
    page.evaluate(installation.axe_source())
    states = re.findall(r"\.badge\.(\w+)", "".join(page_files()[f"style/{name}.css"][0].decode() for name in STYLES))
    assert {"waiting", "prefill", "decode", "paused", "cancelled", "error"} <= set(states)
    page.evaluate(BADGES, sorted(set(states)))
    Look(scheme, 1280, 800).show(page)
    assert serious_faults(page) == []


CUT = """() =>
  [...document.querySelectorAll(".tile .value, .tile .note, .engine-numbers dd, .rows :is(.latency, .tokens)")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"""


@pytest.mark.long
def test_no_figure_of_the_engine_is_cut_off(server: ServerProcess, tab: Tab) -> None:
    with under_load(server, SESSIONS) as load:
        page = tab.open()
        enliven(page, "engine")
        server.cancel(load.clients[0].id)
        # Among the live requests it stays for a moment only.
        expect(page.locator(".rows .latency", has_text="stopped after").first).to_be_attached()
        for look in LOOKS:
            look.show(page)
            assert page.evaluate(CUT) == [], look


# True if the timeline has blocks in the colour that decoding has in the page.
IN_THE_PAGES_COLOURS = """() => {
  const canvas = document.querySelector(".timeline-card canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const wanted = getComputedStyle(document.documentElement).getPropertyValue("--decode").match(/\\d+/g).map(Number);
  for (let at = 0; at < data.length; at += 4) if (wanted.every((value, i) => data[at + i] === value)) return true;
  return false;
}"""


@pytest.mark.long
def test_the_timeline_has_the_colours_of_a_new_scheme_at_once(server: ServerProcess, tab: Tab) -> None:
    with under_load(server, SESSIONS):
        page = tab.open()
        enliven(page, "engine")
        page.wait_for_function(IN_THE_PAGES_COLOURS)
        for scheme in SCHEMES * 3:
            Look(scheme, 1280, 800).show(page)
            assert page.evaluate(IN_THE_PAGES_COLOURS), scheme


def test_what_does_not_fit_and_what_nobody_can_use_is_found(tab: Tab) -> None:
    page = tab.open()
    page.evaluate(installation.axe_source())
    page.evaluate("""() => {
      const wide = Object.assign(document.createElement("button"), { className: "too-wide" });
      wide.style.width = "5000px";
      document.querySelector("main").append(wide);
    }""")
    (wide,) = what_is_too_wide(page)
    (unnamed,) = serious_faults(page)
    assert 'class="too-wide"' in wide
    assert unnamed.startswith("button-name: ")


def what_is_out_of_sight(page: Page, look: Look) -> list[str]:
    """Buttons that cancel and are reached only by scrolling sideways."""
    buttons = page.get_by_role("button", name="cancel request").all()
    boxes = [box for button in buttons if (box := button.bounding_box()) is not None]
    assert boxes
    return [f"a button to cancel at {box}" for box in boxes if box["x"] < 0 or box["x"] + box["width"] > look.width]
