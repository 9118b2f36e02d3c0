"""The recipes of ``docs/editors.md``: a running server answers at each address that their settings lead an editor to.

The requests have the fields that the editors' sources put together. Each editor's names of settings are listed here as
its sources have them, so that a recipe has no misspelt one.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clients.recipes import THERE
from tests.support.http_process import ServerProcess
from tests.support.pages import ROOT, blocks

EXCHANGES = Path(__file__).parent / "exchanges"
LLAMA_VSCODE: dict[str, Any] = json.loads((EXCHANGES / "llama_vscode.json").read_text())
PAGE = "docs/editors.md"
HELLO = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
# Qwen's marks, as Continue and Zed write them.
GAP = "<|fim_prefix|>def area(<|fim_suffix|>):\n    pass\n<|fim_middle|>"
MARKS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]


def recipes(editor: str, server: ServerProcess) -> list[str]:
    return [block.code.replace(THERE, server.url) for block in blocks(PAGE) if block.heading == editor]


def post(server: ServerProcess, url: str, body: dict[str, Any], **headers: str) -> Any:
    answer = server.http.post(url, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(server: ServerProcess, url: str, body: dict[str, Any], **headers: str) -> list[Any]:
    with server.http.stream("POST", url, json=body | {"stream": True}, headers=headers) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_llama_vim(server: ServerProcess) -> None:
    (script,) = recipes("llama.vim", server)
    name, _, value = script.replace("\n    \\", " ").partition(" = ")
    settings: dict[str, str] = ast.literal_eval(value)
    assert name == "let g:llama_config"
    assert set(settings) <= {"endpoint_fim", "endpoint_inst", "model_fim", "model_inst", "api_key"}
    (suggestion, *_) = json.loads((EXCHANGES / "llama_vim.json").read_text())
    assert isinstance(post(server, settings["endpoint_fim"], suggestion["body"])["content"], str)
    assert streamed(server, settings["endpoint_inst"], HELLO)[0]["choices"]


def test_llama_vscode(server: ServerProcess) -> None:
    (text,) = recipes("llama.vscode", server)
    settings = {name.removeprefix("llama-vscode."): value for name, value in json.loads(text).items()}
    assert set(settings) == {
        *("endpoint", "endpoint_chat", "endpoint_tools"),
        *("api_key", "ask_install_llamacpp", "env_start_last_used"),
    }
    post(server, settings["endpoint"] + "/infill", LLAMA_VSCODE["suggestion"] | {"n_cmpl": 1})
    post(server, settings["endpoint_chat"] + "/v1/chat/completions", HELLO)
    agent = settings["endpoint_tools"]
    assert server.http.get(agent + "/v1/models").json()["data"]
    post(server, agent + "/apply-template", LLAMA_VSCODE["template"])
    assert streamed(server, agent + "/v1/chat/completions", HELLO)


def test_continue(server: ServerProcess) -> None:
    (text,) = recipes("Continue", server)
    settings = yaml.safe_load(text)
    assert {"name", "version", "schema", "models"} == set(settings)
    by_role = {role: model for model in settings["models"] for role in model["roles"]}
    assert set(by_role) == {"chat", "edit", "apply", "autocomplete"}
    for model in settings["models"]:
        assert model["provider"] == "openai"
        assert set(model) <= {"name", "provider", "model", "apiBase", "apiKey", "roles", "requestOptions"}
    chat, suggestions = by_role["chat"], by_role["autocomplete"]
    assert streamed(server, chat["apiBase"] + "/chat/completions", HELLO | {"model": chat["model"]})
    body = {"model": suggestions["model"], "prompt": GAP, "max_tokens": 8, "temperature": 0.01, "stop": MARKS}
    headers = suggestions["requestOptions"]["headers"]
    assert streamed(server, suggestions["apiBase"] + "/completions", body, **headers)[0]["choices"][0]["text"]


def test_zed(server: ServerProcess) -> None:
    settings = json.loads(recipes("Zed", server)[0])
    (provider,) = settings["language_models"]["openai_compatible"].values()
    (model,) = provider["available_models"]
    assert set(model) == {"name", "display_name", "max_tokens", "max_output_tokens"}
    body = HELLO | {"model": model["name"], "stream_options": {"include_usage": True}}
    chunks = streamed(server, provider["api_url"] + "/chat/completions", body)
    assert chunks[-1]["usage"]["completion_tokens"]
    predictions = settings["edit_predictions"]
    own = predictions[predictions["provider"]]
    assert (predictions["provider"], own["prompt_format"]) == ("open_ai_compatible_api", "qwen")
    body = {"model": own["model"], "prompt": GAP, "max_tokens": own["max_output_tokens"], "stop": MARKS}
    seen = post(server, own["api_url"], body)
    assert isinstance(seen["choices"][0]["text"], str)
    assert isinstance(seen["id"], str)


def test_zeds_provider_for_llama_cpp(server: ServerProcess) -> None:
    url = json.loads(recipes("Zed", server)[1])["language_models"]["llama.cpp"]["api_url"]
    (model,) = server.http.get(f"{url}/v1/models").json()["data"]
    properties = server.http.get(f"{url}/props").json()
    assert properties["default_generation_settings"]["n_ctx"] == model["meta"]["n_ctx"]
    assert properties["modalities"]["vision"] is False
    assert properties["chat_template_caps"]["supports_tool_calls"] is True
    body = HELLO | {"model": model["id"], "stream_options": {"include_usage": True}}
    for chunk in streamed(server, f"{url}/v1/chat/completions", body):
        assert isinstance(chunk["model"], str)
        assert isinstance(chunk["object"], str)
        assert isinstance(chunk["choices"], list)


def test_cline(server: ServerProcess) -> None:
    (text,) = recipes("Cline", server)
    written = json.loads(text)
    (provider,) = written["providers"].values()
    settings = provider["settings"]
    assert written["lastUsedProvider"] == settings["provider"] == "openai-compatible"
    command = f"-k {settings['apiKey']} -m {settings['model']} -b {settings['baseUrl'].replace(server.url, THERE)}"
    assert f"`cline auth -p openai-compatible {command}`" in (ROOT / PAGE).read_text("utf-8")
    body = HELLO | {"model": settings["model"], "tools": LLAMA_VSCODE["template"]["tools"]}
    assert streamed(server, settings["baseUrl"] + "/chat/completions", body)


@pytest.mark.parametrize("editor", ["llama.vim", "llama.vscode", "Continue", "Zed", "Cline"])
def test_the_table_has_every_editor(editor: str) -> None:
    assert re.search(rf"^\| {re.escape(editor)} \|", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)
