"""The page of endpoints is what a server says of itself."""

from tools.describe_http import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python tools/describe_http.py"
