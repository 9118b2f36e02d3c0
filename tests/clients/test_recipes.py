"""Every client has its recipe on the page, and the page says where the server is."""

import json
import tomllib

import pytest

from tests.clients.recipes import THERE, exports, recipe
from tests.support.pages import ROOT

URL = "http://127.0.0.1:1234"


def test_a_recipe_is_for_the_server_that_is_asked_for_and_an_unknown_heading_has_none() -> None:
    code = recipe("openai", URL)
    assert f'"{URL}/v1"' in code
    assert THERE not in code
    with pytest.raises(KeyError):
        recipe("Emacs", URL)


def test_files_of_settings_can_be_read() -> None:
    assert tomllib.loads(recipe("Codex CLI", URL))["model_providers"]["pyllmcancel"]["base_url"] == f"{URL}/v1"
    assert json.loads(recipe("OpenCode", URL))["provider"]["pyllmcancel"]["options"]["baseURL"] == f"{URL}/v1"
    assert exports("Claude Code", URL)["ANTHROPIC_BASE_URL"] == URL
    assert exports("Open WebUI", URL)["OPENAI_API_BASE_URL"] == f"{URL}/v1"


def test_every_client_of_the_page_is_used_or_its_settings_are_read() -> None:
    page = (ROOT / "docs" / "clients.md").read_text("utf-8")
    headings = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")]
    used = "".join(path.read_text() for path in (ROOT / "tests" / "clients").glob("*.py"))
    assert headings
    assert [heading for heading in headings if f'"{heading}"' not in used] == []
