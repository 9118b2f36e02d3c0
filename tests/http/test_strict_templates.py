"""Agents' requests to a server whose chat template is strict: every dialect is served."""

from typing import Any

import pytest

from tests.support import fake_native
from tests.support.http_world import open_world
from tests.support.marks import mostly_long
from tests.templates.matrix import TEMPLATES

REMINDED: dict[str, Any] = {
    "max_tokens": 4,
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "abcdef123", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "abcdef123", "content": "ok"},
                {"type": "text", "text": "reminder"},
            ],
        },
    ],
}
DEVELOPER_LATER: dict[str, Any] = {
    "store": False,
    "max_output_tokens": 4,
    "instructions": "a",
    "input": [{"role": "user", "content": "hi"}, {"role": "developer", "content": "b"}],
}
CHAT: dict[str, Any] = {
    "max_tokens": 4,
    "messages": [
        {"role": "user", "content": "pwd /srv/x71"},
        {"role": "user", "content": "What is x72?"},
        {"role": "assistant", "content": "x73 it is."},
        {"role": "system", "content": "x74 by now."},
    ],
}
BODIES = {"/v1/messages": REMINDED, "/v1/responses": DEVELOPER_LATER, "/v1/chat/completions": CHAT}


@pytest.mark.parametrize(
    "name",
    mostly_long(
        [
            "mistralai-Ministral-3-14B-Reasoning-2512",
            "google-gemma-2-2b-it",
            "Mistral-Small-3.2-24B-Instruct-2506",
            "mistralai-Mistral-Nemo-Instruct-2407",
            "Qwen3.5-4B",
        ],
        "google-gemma-2-2b-it",
    ),
)
async def test_every_dialect_is_served(name: str) -> None:
    template = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    model = fake_native.Model(n_ctx_train=16384)
    async with open_world(model=model, n_ctx=16384, chat_template=template) as world:
        for path, body in BODIES.items():
            answer = await world.post(path, body)
            assert answer.status == 200, answer.json()
        assert (await world.post("/v1/messages/count_tokens", REMINDED)).json()["input_tokens"] > 0
        prompt = (await world.post("/apply-template", CHAT)).json()["prompt"]
        assert [prompt.count(message["content"]) for message in CHAT["messages"]] == [1, 1, 1, 1]
