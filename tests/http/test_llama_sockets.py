"""llama-server's endpoints on the real engine: what clients send, and clients that leave."""

from __future__ import annotations

import pytest

from tests.support.http_process import ServerProcess

GAP = {"input_prefix": "def f():\n", "input_suffix": "\nf()\n"}


def test_an_editors_request_is_filled(server: ServerProcess) -> None:
    body = GAP | {
        "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}],
        "prompt": "    ret",
        "n_predict": 8,
        "samplers": ["top_k", "top_p", "infill"],
        "t_max_prompt_ms": 30_000,
        "t_max_predict_ms": 30_000,
        "return_tokens": True,
    }
    whole = server.http.post("/infill", json=body).json()
    assert whole["stop"] is True
    assert whole["prompt"].startswith(
        "<|repo_name|>project\n<|file_sep|>a.py\nx = 1\n<|file_sep|>file\n<|fim_prefix|>def f"
    )
    assert whole["prompt"].endswith("    ret<|fim_suffix|>\nf()\n<|fim_middle|>")
    assert len(whole["tokens"]) <= whole["tokens_predicted"] <= 8


def test_a_grammar_a_schema_and_probabilities(server: ServerProcess) -> None:
    options = {"prompt": "hello", "n_predict": 8, "n_probs": 3}
    whole = server.http.post("/completion", json=options | {"grammar": 'root ::= "aaaa"'}).json()
    assert (whole["content"], whole["stop_type"]) == ("aaaa", "eos")
    whole = server.http.post("/completion", json=options | {"json_schema": {"const": 7}}).json()
    assert whole["content"] == "7"
    whole = server.http.post("/completion", json=options | {"post_sampling_probs": True, "top_k": 2}).json()
    for place in whole["completion_probabilities"]:
        assert 1 <= len(place["top_probs"]) <= 2
        assert sum(one["prob"] for one in place["top_probs"]) == pytest.approx(1, abs=1e-5)
