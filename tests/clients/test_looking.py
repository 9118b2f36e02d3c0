"""Codex and Claude Code, unchanged, with pictures in the results of their tools. Skipped where they are missing."""

from pathlib import Path

import pytest

from tests.clients.looking import AGENTS, ROWS, look, write_eyes
from tests.clients.model import serving

pytestmark = pytest.mark.long


@pytest.mark.timeout(1800)  # a busy machine takes minutes for a picture
@pytest.mark.parametrize("name", AGENTS)
def test_a_picture_in_a_tools_result_is_taken_and_its_encoding_is_stopped(name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]
    if not agent.client.environment.is_here:
        pytest.skip(f"not here: python -m tests.clients --fetch {name}")
    with serving(tmp_path, *write_eyes(tmp_path)) as server:
        seen = look(agent, server, tmp_path)
    assert seen.refused == ()
    assert seen.prompt_tokens > ROWS
    assert seen.missing_tokens >= ROWS
