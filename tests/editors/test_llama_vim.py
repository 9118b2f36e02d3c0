"""llama.vim's requests, as Vim sent them (commit a1c8e6e), in their order and with their company.

`exchanges/llama_vim.json` was recorded while Vim was used; only its instruction for edits differs. The assertions are
about the data that the plugin's callbacks read.
"""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http_process import CHAT, RawClient, ServerProcess, assert_ends_soon, fresh_id

SESSION: list[dict[str, Any]] = json.loads((Path(__file__).parent / "exchanges" / "llama_vim.json").read_text())
EDITS = [sent["body"] for sent in SESSION if sent["kind"] == "edit"]
# Asked for one after the other: the plugin has one suggestion at a time, and a timer for the next.
OTHERS = [sent for sent in SESSION if sent["kind"] != "edit"]
NUMBERS = ("prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second")


def post(server: ServerProcess, sent: dict[str, Any]) -> httpx.Response:
    answer = server.http.post(sent["path"], json=sent["body"], headers={"X-Request-Id": fresh_id()})
    assert answer.status_code == 200, answer.text
    return answer


def ids(sents: list[dict[str, Any]]) -> list[str]:
    return [f"{number}-{sent['kind']}".replace(" ", "-") for number, sent in enumerate(sents)]


SUGGESTIONS = [sent for sent in OTHERS if sent["kind"].startswith("suggestion")]
WARM_UPS = [sent for sent in OTHERS if sent["kind"].startswith("warm-up")]


@pytest.mark.parametrize("sent", SUGGESTIONS, ids=ids(SUGGESTIONS))
def test_a_suggestion_is_what_the_plugin_reads(server: ServerProcess, sent: dict[str, Any]) -> None:
    text = post(server, sent).text
    # Vim hands over a line at a time, and the plugin looks for a text before it parses.
    assert "\n" not in text
    assert re.match(r"\s*{", text)
    assert re.search(r'"content"\s*:"', text)
    seen = json.loads(text)
    assert all(isinstance(seen[f"timings/{name}"], int | float) for name in NUMBERS)
    assert isinstance(seen["tokens_cached"], int)


@pytest.mark.parametrize("sent", WARM_UPS, ids=ids(WARM_UPS))
def test_a_warm_up_generates_nothing(server: ServerProcess, sent: dict[str, Any]) -> None:
    seen = server.request(post(server, sent).headers["X-Request-Id"])
    assert (seen["status"], seen["completion_tokens"]) == ("finished", 0)


def test_an_edit_streams_beside_the_rest_and_esc_ends_it_alone(server: ServerProcess) -> None:
    with RawClient(server.port) as vim:
        edit = vim.post(CHAT, **EDITS[0])
        answer = vim.answer()
        assert edit_text(answer)
        done = [post(server, sent).headers["X-Request-Id"] for sent in OTHERS]
        assert {server.request(request_id)["status"] for request_id in done} == {"finished"}
        assert server.request(edit)["status"] == "running"
        answer.close()
        assert_ends_soon(server, edit, vim.leave("close"), "decode")  # the plugin ends its curl


def test_a_second_edit_leaves_the_first_alone(server: ServerProcess) -> None:
    """Each has a slot's number of its own, more of them than there are slots."""
    with RawClient(server.port) as first, RawClient(server.port) as second:
        one = first.post(CHAT, **EDITS[0])
        other = second.post(CHAT, **EDITS[1] | {"id_slot": 17})
        with first.answer() as one_answer, second.answer() as other_answer:
            assert edit_text(one_answer)
            assert edit_text(other_answer)
            assert [server.request(edit)["status"] for edit in (one, other)] == ["running", "running"]


def edit_text(answer: Any) -> str:
    """The first text of an edit, read as the plugin does: line by line, `data: ` cut off, by `choices[0].delta`."""
    for line in answer:
        if not line.strip():
            continue
        delta = json.loads(line.decode().removeprefix("data: "))["choices"][0]["delta"]
        if isinstance(content := delta.get("content"), str) and content:
            return content
    raise AssertionError("the stream ended without a text")
