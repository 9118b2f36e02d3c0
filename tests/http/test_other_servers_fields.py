"""Fields of llama-server, vLLM and Ollama on OpenAI's two endpoints: what `field_table.json` does not say of them."""

from typing import Any

import pytest

from tests.support import fake_native
from tests.support.fake_model import EOS
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

PATHS = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
PROMPT = b"hello"
ODD = 'a"b\\c\nd\té\U0001f600/'  # a choice may have any characters


async def ask(world: World, path: str, content: str = PROMPT.decode(), **fields: Any) -> Exchange:
    begin = world.complete if path == COMPLETIONS else world.chat
    return await begin(content, **fields).end()


async def choice_of(world: World, path: str, **fields: Any) -> tuple[str, str]:
    exchange = await ask(world, path, **fields)
    assert exchange.status == 200, exchange.body
    assert "x-ignored-fields" not in exchange.headers, exchange.headers
    (choice,) = exchange.json()["choices"]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"], choice["finish_reason"]


def say(world: World, path: str, answer: bytes) -> None:
    prompt = PROMPT if path == COMPLETIONS else b"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    world.model.answers[prompt] = answer


@PATHS
@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"min_tokens": 8, "max_tokens": 8}, None, "length"),
        ({"n": 1, "n_cmpl": 2}, "one two", "stop"),
        ({"structured_outputs": {"choice": [ODD]}, "max_tokens": 50}, None, "stop"),
        ({"keep_alive": -1, "sse_ping_interval": -1, "id_slot": 3}, "one two", "stop"),
        ({"functions": [], "function_call": "none", "format": "", "options": None}, "one two", "stop"),
        ({"stop_token_ids": [], "guided_json": None, "structured_outputs": None}, "one two", "stop"),
        ({"options": {"top_k": 3, "repeat_last_n": -1, "seed": 1, "num_ctx": 512, "num_keep": 4}}, "one two", "stop"),
        ({"options": {"num_predict": 3}, "n_predict": 5}, "one t", "length"),
        ({"options": {"num_predict": -2}}, "one two", "stop"),
        ({"stop": "two", "options": {"stop": ["e"]}}, "one ", "stop"),
        ({"stop_token_ids": [ord("e")], "include_stop_str_in_output": True}, "one", "stop"),
        ({"guided_regex": "[a-c]{4}/x"}, None, "stop"),
        ({"guided_json": '{"const": 1}'}, "1", "stop"),
        ({"structured_outputs": {"json": {"const": 2}}}, "2", "stop"),
        ({"structured_outputs": {"json_object": True}, "max_tokens": 1}, "{", "length"),
        ({"response_format": {"type": "regex", "pattern": "a\nb"}}, "a\nb", "stop"),
    ],
)
async def test_limits_and_forms_have_other_names_and_what_is_accepted_is_not_told_as_ignored(
    world: World, path: str, fields: dict[str, Any], text: str | None, reason: str
) -> None:
    say(world, path, b"one two")
    found = await choice_of(world, path, **{"temperature": 0} | ({} if path == CHAT else {"max_tokens": None}) | fields)
    assert found[1] == reason
    assert text is None or found[0] == text


class Controls(fake_native.Model):
    """Token 7 is a control token, and 1 begins texts."""

    special_tokens = {"eos": EOS, "bos": 1}  # noqa: RUF012

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return (b"<control>" if special else b"") if token == 7 else super().piece(token, special=special)

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return [1, *super().tokenize(text)] if add_special else super().tokenize(text)


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (None, "ab"), (False, "a<control>b")])
async def test_control_tokens_may_be_shown(skip: bool | None, text: str) -> None:
    async with open_world(model=Controls()) as world:
        world.model.answers[b"\x01hello"] = b"a\x07b"
        exchange = await ask(world, COMPLETIONS, skip_special_tokens=skip, temperature=0, logprobs=0)
        (choice,) = exchange.json()["choices"]
        assert choice["text"] == text
        assert len(choice["logprobs"]["tokens"]) == 3


@pytest.mark.parametrize(("adds", "n_tokens"), [(None, 6), (True, 6), (False, 5)])
async def test_the_first_token_may_be_left_out(adds: bool | None, n_tokens: int) -> None:
    async with open_world(model=Controls()) as world:
        exchange = await ask(world, COMPLETIONS, add_special_tokens=adds, max_tokens=1)
        assert exchange.json()["usage"]["prompt_tokens"] == n_tokens


@PATHS
@pytest.mark.parametrize(("most", "n_tokens"), [(3, 3), (-1, 63)])
async def test_a_prompt_may_be_cut_at_its_beginning(path: str, most: int, n_tokens: int) -> None:
    async with open_world(n_ctx=64) as world:
        exchange = await ask(world, path, "x" * 500, truncate_prompt_tokens=most, max_tokens=1)
        assert exchange.json()["usage"]["prompt_tokens"] == n_tokens
        assert (await ask(world, path, "x" * 500)).status == 400


@PATHS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_tokens_are_returned(world: World, path: str, stream: bool) -> None:
    say(world, path, "aé!".encode())
    exchange = await ask(world, path, return_tokens=True, stream=stream, temperature=0)
    parts = exchange.json_events() if stream else [exchange.json()]
    tokens = [token for part in parts for choice in part["choices"] for token in choice.get("tokens", [])]
    assert bytes(tokens) == "aé!".encode()


@PATHS
async def test_an_answer_may_have_chosen_fields_only(world: World, path: str) -> None:
    exchange = await ask(world, path, max_tokens=1, response_fields=["usage/total_tokens", "model", "nothing"])
    assert set(exchange.json()) == {"usage/total_tokens", "model"}
    whole = await ask(world, path, max_tokens=1, response_fields=["content", "stop_type"])
    assert {"id", "choices", "usage"} <= set(whole.json())
