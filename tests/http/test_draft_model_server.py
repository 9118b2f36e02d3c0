"""``serve`` with a draft model or heads: the answers are those without."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_models
from tests.support.http_process import COMPLETIONS, ServerProcess
from tests.support.tiny_heads import write_tiny_heads

PROMPTS = ["a prompt", "another one, which is longer", "the last"]
UNDRAFTED: dict[str, Any] = {"speculative.n_max": 0}
SIZES = ("--ctx-size", "2048", "--parallel", "1")
# With them a step of more tokens gives the same ones on every processor: see tests/native/conftest.py.
SAME_TOKENS = ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("draft models")
    return {
        "model": tiny_models.write_tiny_llama(folder / "model.gguf"),
        "other": tiny_models.write_tiny_llama(folder / "other.gguf", seed=5, n_layer=1),
    }


def answers(server: ServerProcess, **more: Any) -> list[str]:
    found = []
    for prompt in PROMPTS:
        fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
        answer = server.http.post(COMPLETIONS, json=fields | more)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["choices"][0]["text"])
    return found


def test_the_answers_are_those_without_a_draft_model(files: dict[str, Path]) -> None:
    drafting = ("-md", str(files["other"]), "--spec-type", "draft-simple")
    with ServerProcess("-m", str(files["model"]), *drafting, *SIZES, *SAME_TOKENS) as server:
        server.started()
        server.wait_for_log(f"answers are drafted by {re.escape(str(files['other']))}")
        (slot,) = server.http.get("/slots").json()
        assert slot["speculative"] is True
        assert answers(server, **UNDRAFTED) == answers(server)


def test_the_answers_are_those_without_heads(tmp_path: Path) -> None:
    model = str(write_tiny_heads(tmp_path / "heads.gguf", strength=0.0))
    with ServerProcess("-m", model, "--spec-type", "draft-mtp", *SIZES, *SAME_TOKENS) as server:
        server.started()
        server.wait_for_log("answers are drafted by the model's own heads")
        assert server.http.get("/props").json()["default_generation_settings"]["params"]["speculative.types"] == "heads"
        assert answers(server, **UNDRAFTED) == answers(server)
