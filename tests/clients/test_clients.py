"""The Python clients that are installed with the tests, and those that were fetched: `tests.clients` has all."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.clients import BY_NAME
from tests.clients.evidence import evidence
from tests.clients.packages import Environment
from tests.clients.session import Session
from tests.support.http_process import ServerProcess
from tests.support.marks import mostly_long

INSTALLED = ("openai", "openai-responses", "anthropic", "langchain")
FETCHED = ("llm", "llama-index")  # packages that want an environment of their own
HERE = Environment("here", ("installed",))


@pytest.mark.parametrize("name", mostly_long([*INSTALLED, *FETCHED], "openai"))
def test_a_client_calls_a_tool_streams_and_is_cancelled(server: ServerProcess, tmp_path: Path, name: str) -> None:
    client = BY_NAME[name]
    if name in INSTALLED:
        client = replace(client, environment=HERE)
    elif not client.environment.is_here:
        pytest.skip(f"not here: python -m tests.clients --fetch {name}")
    with Session(name, client.environment, server, tmp_path) as session:
        left_at = client.use(session)
        assert evidence(session.proxy.exchanges, server, left_at).faults == []
