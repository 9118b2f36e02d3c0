"""llama.vscode's requests, as its sources (commit 3938fb3) put them together, and what it reads of the answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.editors.test_recipes import post, streamed
from tests.support.http_process import CHAT, RawClient, ServerProcess, assert_ends_soon

SENT: dict[str, Any] = json.loads((Path(__file__).parent / "exchanges" / "llama_vscode.json").read_text())
TOOLS = SENT["template"]["tools"]
QUESTION = {"model": "stdlib-coder", "messages": [{"role": "user", "content": "List the files."}], "stream": True}
NUMBERS = ("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second")


def test_its_look_at_the_server(server: ServerProcess) -> None:
    """Its status bar asks for `status`, its budget of tokens for the model's limits and the context."""
    assert server.http.get("/health").json()["status"] == "ok"
    (model,) = server.http.get("/v1/models").json()["data"]
    assert model["owned_by"] == "llamacpp" or isinstance(model["meta"], dict)
    assert server.http.get("/props").json()["default_generation_settings"]["n_ctx"] > 0


@pytest.mark.parametrize("n", [1, 3])
def test_suggestions(server: ServerProcess, n: int) -> None:
    answers = post(server, "/infill", SENT["suggestion"] | {"n_cmpl": n})
    # One answer comes alone, several as a list: the plugin takes both.
    answers = [answers] if n == 1 else answers
    assert len(answers) == n
    for answer in answers:
        assert isinstance(answer["content"], str)
        assert answer["tokens_cached"] > 0
        assert all(isinstance(answer["timings"][name], int | float) for name in NUMBERS)


def test_a_warm_up_generates_nothing(server: ServerProcess) -> None:
    assert post(server, "/infill", SENT["warm-up"])["tokens_predicted"] == 0


def test_an_edit(server: ServerProcess) -> None:
    assert post(server, CHAT, SENT["edit"])["choices"][0]["message"]["content"]


def test_its_count_of_a_prompt(server: ServerProcess) -> None:
    """Before each turn of an agent, with the tools; a failure would make it guess."""
    assert "List the files." in post(server, "/apply-template", SENT["template"])["prompt"]
    assert len(post(server, "/tokenize", SENT["tokenize"])["tokens"]) < len(SENT["tokenize"]["content"]) / 2


def test_an_agent_that_is_stopped(server: ServerProcess) -> None:
    with RawClient(server.port) as vscode:
        turn = vscode.post(CHAT, **QUESTION, tools=TOOLS, tool_choice="auto", max_tokens=4096)
        answer = vscode.answer()
        assert answer.status == 200
        server.wait_for(turn, completion_tokens=lambda n: n > 5)
        answer.close()
        assert_ends_soon(server, turn, vscode.leave("close"), "decode")


def test_an_agent_that_calls_a_tool(server: ServerProcess) -> None:
    body = QUESTION | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200}
    deltas = [choice["delta"] for chunk in streamed(server, CHAT, body) for choice in chunk["choices"][:1]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    indices = [call["index"] for call in calls]
    assert indices == sorted(indices)
    assert indices[0] == 0
    assert calls[0]["function"]["name"] == "list_directory"


def test_a_prompt_over_the_context_tells_both_lengths(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "word " * 70_000}]
    answer = server.http.post(CHAT, json=QUESTION | {"messages": messages})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["n_prompt_tokens"] > error["n_ctx"] > 0
