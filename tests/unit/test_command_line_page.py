"""The page on the command line is what the command's own help says."""

import pytest

from tools.describe_commands import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python tools/describe_commands.py"


def test_the_environment_has_no_effect_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLMCANCEL_PORT", "1234")
    assert PAGE.read_text("utf-8") == page()
