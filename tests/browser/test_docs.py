"""``/docs`` without a network: described and tried out by what the package has."""

from tests.browser.chromium import Tab, expect


def test_the_api_is_described_and_tried_out_without_another_host(tab: Tab) -> None:
    page = tab.page
    page.goto("/docs")
    health = page.locator(".opblock").filter(has=page.get_by_text("/health", exact=True))
    health.locator(".opblock-summary-control").click()
    health.get_by_role("button", name="Try it out").click()
    with page.expect_response("**/health") as answered:
        health.get_by_role("button", name="Execute").click()
    assert answered.value.status == 200
    expect(health.locator(".live-responses-table .response-col_status").get_by_text("200")).to_be_visible()
