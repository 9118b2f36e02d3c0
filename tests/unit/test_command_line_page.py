"""The page on the command line is what the command's own help says."""

from __future__ import annotations

import pytest

from pyllmcancel.cli.serve_options import GROUPS
from tools.describe_commands import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python tools/describe_commands.py"


def test_the_environment_has_no_effect_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLMCANCEL_PORT", "1234")
    assert PAGE.read_text("utf-8") == page()


def test_the_page_has_every_command_and_group() -> None:
    text = page()
    for command in ("serve", "models", "models get", "top", "bench cancel"):
        assert f"\n## `pyllmcancel {command}`\n" in text
    for group in GROUPS:
        assert f"\n### serve: {group}\n" in text
