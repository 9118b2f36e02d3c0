"""The effects of llama-server's, vLLM's and Ollama's fields on OpenAI's two endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import fake_native
from tests.support.fake_model import EOS
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

pytestmark = pytest.mark.anyio

PATHS = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PROMPT = b"hello"


async def ask(world: World, path: str, **fields: Any) -> Exchange:
    needed: dict[str, Any] = {"prompt": PROMPT.decode()}
    if path == CHAT:
        needed = {"messages": [{"role": "user", "content": PROMPT.decode()}]}
    return await world.post(path, needed | fields)


async def choice_of(world: World, path: str, **fields: Any) -> tuple[str, str]:
    """Text and finish reason."""
    exchange = await ask(world, path, **fields)
    assert exchange.status == 200, exchange.body
    assert "x-ignored-fields" not in exchange.headers, exchange.headers
    (choice,) = exchange.json()["choices"]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"], choice["finish_reason"]


def say(world: World, path: str, answer: bytes) -> None:
    """Return the model's answer."""
    prompt = PROMPT if path == COMPLETIONS else b"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    world.model.answers[prompt] = answer


@PATHS
@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({"n_predict": 3}, "one", "length"),
        ({"options": {"num_predict": 3}}, "one", "length"),
        ({"options": {"num_predict": 3}, "n_predict": 5}, "one t", "length"),
        ({"max_tokens": -1}, "one two", "stop"),
        ({"options": {"num_predict": -2}}, "one two", "stop"),
        ({"options": {"stop": [" "]}}, "one", "stop"),
        ({"stop": "two", "options": {"stop": ["e"]}}, "one ", "stop"),
        ({"stop_token_ids": [ord("e")]}, "on", "stop"),
        ({"stop_token_ids": [ord("e")], "include_stop_str_in_output": True}, "one", "stop"),
        ({"stop": [" "], "include_stop_str_in_output": True}, "one ", "stop"),
        ({"guided_choice": ["yes", 'a"\\\n']}, None, "stop"),
        ({"guided_regex": "[a-c]{4}/x"}, None, "stop"),
        ({"guided_json": '{"const": 1}'}, "1", "stop"),
        ({"structured_outputs": {"json": {"const": 2}}}, "2", "stop"),
        ({"structured_outputs": {"regex": "x{3}"}}, "xxx", "stop"),
        ({"guided_grammar": 'start: "k" "j"'}, "kj", "stop"),
        ({"response_format": {"type": "regex", "pattern": "a\nb"}}, "a\nb", "stop"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 3}}}},
            "3",
            "stop",
        ),
        ({"format": {"const": 4}}, "4", "stop"),
        ({"min_tokens": 1}, "one two", "stop"),
    ],
)
async def test_limits_and_forms_have_other_names(
    world: World, path: str, fields: dict[str, Any], text: str | None, reason: str
) -> None:
    say(world, path, b"one two")
    found = await choice_of(world, path, **{"temperature": 0} | ({} if path == CHAT else {"max_tokens": None}) | fields)
    assert found[1] == reason
    assert text is None or found[0] == text


@PATHS
async def test_an_answer_has_at_least_so_many_tokens(world: World, path: str) -> None:
    say(world, path, b"no")
    text, reason = await choice_of(world, path, min_tokens=5, max_tokens=5, temperature=0)
    assert (text[:2], reason) == ("no", "length")


@PATHS
async def test_an_answer_has_only_the_allowed_tokens(world: World, path: str) -> None:
    text, _ = await choice_of(world, path, allowed_token_ids=list(b"ab"), max_tokens=10, temperature=3)
    assert set(text) <= set("ab")
    exchange = await ask(world, path, allowed_token_ids=[EOS + 1])
    assert (exchange.status, exchange.json()["error"]["param"]) == (400, "allowed_token_ids")


@PATHS
async def test_any_json(world: World, path: str) -> None:
    for fields in ({"format": "json"}, {"structured_outputs": {"json_object": True}}):
        assert (await choice_of(world, path, max_tokens=1, **fields))[0] == "{"


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
@pytest.mark.parametrize("most", [3, -1])
async def test_a_prompt_may_be_cut_at_its_beginning(path: str, most: int) -> None:
    async with open_world(n_ctx=64) as world:
        long = "x" * 500 + "end"
        fields: dict[str, Any] = {"prompt": long}
        if path == CHAT:
            fields = {"messages": [{"role": "user", "content": long}]}
        exchange = await world.post(path, fields | {"truncate_prompt_tokens": most, "max_tokens": 1})
        assert exchange.json()["usage"]["prompt_tokens"] == (3 if most == 3 else 63)
        refused = await world.post(path, fields)
        assert refused.status == 400


async def test_a_prompt_of_tokens_may_be_cut_too(world: World) -> None:
    exchange = await world.complete(list(b"hello"), truncate_prompt_tokens=2, max_tokens=1).end()
    assert exchange.json()["usage"]["prompt_tokens"] == 2


@PATHS
async def test_probabilities_are_logprobs(world: World, path: str) -> None:
    (choice,) = (await ask(world, path, n_probs=2, max_tokens=1)).json()["choices"]
    if path == CHAT:
        assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    else:
        assert len(choice["logprobs"]["top_logprobs"][0]) >= 2


@PATHS
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_tokens_are_returned(world: World, path: str, stream: bool) -> None:
    say(world, path, "aé!".encode())
    exchange = await ask(world, path, return_tokens=True, stream=stream, temperature=0)
    parts = exchange.json_events() if stream else [exchange.json()]
    tokens = [token for part in parts for choice in part["choices"] for token in choice.get("tokens", [])]
    assert bytes(tokens) == "aé!".encode()


@PATHS
@pytest.mark.parametrize(
    ("fields", "n_choices"), [({"n_cmpl": 2}, 2), ({"n": 1, "n_cmpl": 2}, 1), ({"n": None, "n_cmpl": None}, 1)]
)
async def test_choices_have_another_name(world: World, path: str, fields: dict[str, Any], n_choices: int) -> None:
    assert len((await ask(world, path, max_tokens=1, **fields)).json()["choices"]) == n_choices


@PATHS
async def test_an_answer_may_have_chosen_fields_only(world: World, path: str) -> None:
    exchange = await ask(world, path, max_tokens=1, response_fields=["usage/total_tokens", "model", "nothing"])
    assert set(exchange.json()) == {"usage/total_tokens", "model"}
    whole = await ask(world, path, max_tokens=1, response_fields=["content", "stop_type"])
    assert {"id", "choices", "usage"} <= set(whole.json())


@PATHS
@pytest.mark.parametrize(
    "fields",
    [
        {"samplers": "kpt"},
        {"samplers": ["top_k", "top_p", "temperature"]},
        {"repetition_penalty": 1.3},
        {"seed": -1},
        {"logit_bias": [[97, 1.5], [98, False]]},
        {"options": {"temperature": 0.5, "top_k": 3, "repeat_last_n": -1, "seed": 1, "num_ctx": 512, "num_keep": 4}},
        {"num_ctx": 1024},
        {"keep_alive": "5m"},
        {"keep_alive": -1},
        {"lora": []},
        {"tools": None, "functions": None, "function_call": None, "tool_choice": None},
        {"functions": [], "function_call": "none"},
        {"reasoning_effort": None, "return_tokens": False, "logprobs": False, "stream_options": None, "n": None},
        {"stream_options": {"include_usage": False}},
        {
            "use_beam_search": False,
            "length_penalty": 1.0,
            "best_of": 1,
            "prompt_logprobs": None,
            "logits_processors": None,
        },
        {"priority": 0, "request_id": "a", "cache_salt": "b", "spaces_between_special_tokens": True},
        {"guided_decoding_backend": "xgrammar", "guided_json": None, "structured_outputs": None},
        {"format": "", "options": None, "min_tokens": 0, "stop_token_ids": []},
        {"sse_ping_interval": -1, "n_keep": 1, "n_discard": 1, "n_cache_reuse": 1, "id_slot": 3, "cache_prompt": False},
        {"adaptive_target": -1, "adaptive_decay": 0.9, "backend_sampling": True},
        {"timings_per_token": False, "return_progress": False},
    ],
)
async def test_what_is_accepted_is_not_told_as_ignored(world: World, path: str, fields: dict[str, Any]) -> None:
    await choice_of(world, path, max_tokens=2, **fields)


@pytest.mark.parametrize(
    "fields", [{"top_logprobs": 0}, {"reasoning_effort": "none"}, {"reasoning_format": "auto"}, {"verbosity": "medium"}]
)
async def test_nothing_asked_of_a_chat_is_nothing(world: World, fields: dict[str, Any]) -> None:
    await choice_of(world, CHAT, max_tokens=2, **fields)


@PATHS
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"options": {"num_gpu": 1, "num_ctx": 4096}}, "options.num_gpu, options.num_ctx"),
        ({"num_ctx": 4096}, "num_ctx"),
    ],
)
async def test_what_has_no_effect_is_told(world: World, path: str, fields: dict[str, Any], names: str) -> None:
    assert (await ask(world, path, max_tokens=1, **fields)).headers["x-ignored-fields"] == names


async def test_a_verbosity_that_models_here_do_not_have_is_told() -> None:
    async with open_world() as world:
        exchange = await ask(world, CHAT, max_tokens=1, verbosity="low", reasoning_effort="high")
        assert exchange.headers["x-ignored-fields"] == "verbosity, reasoning_effort"
    async with open_world(unknown_fields="refuse") as world:
        exchange = await ask(world, CHAT, max_tokens=1, reasoning_effort="high")
        assert (exchange.status, exchange.json()["error"]["param"]) == (400, "reasoning_effort")


@PATHS
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 2, "grammar": 'root ::= "x"'}, "min_tokens"),
        ({"allowed_token_ids": [97], "guided_choice": ["x"]}, "allowed_token_ids"),
        ({"min_tokens": 2, "samplers": ["infill"]}, "min_tokens"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_grammar": "roof ::= [a-z]"}, "guided_grammar"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_choice": ["x"], "json_schema": {}}, "guided_choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"xml": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "x", "choice": ["y"]}}, "structured_outputs"),
        ({"format": "xml"}, "format"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": [["a", 1]]}, "logit_bias"),
        ({"samplers": "kz"}, "samplers"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
        ({"options": {"temperature": "hot"}}, "options"),
        ({"options": 1}, "options"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"grammar_lazy": True}, "grammar_lazy"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(world: World, path: str, fields: dict[str, Any], param: str) -> None:
    exchange = await ask(world, path, **fields)
    assert (exchange.status, exchange.json()["error"]["param"]) == (400, param), exchange.body
    assert await world.requests() == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"suffix": "x"}, "suffix"),
        (CHAT, {"echo": True}, "echo"),
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"prompt": "x"}, "prompt"),
        (CHAT, {"add_special_tokens": True}, "add_special_tokens"),
        (CHAT, {"tools": TOOLS, "guided_regex": "x"}, "guided_regex"),
        (CHAT, {"tools": TOOLS, "min_tokens": 2}, "min_tokens"),
        (CHAT, {"tools": TOOLS, "allowed_token_ids": [97]}, "allowed_token_ids"),
        (CHAT, {"tools": TOOLS, "grammar": 'root ::= "x"'}, "grammar"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"think": "a lot"}, "think"),
        (COMPLETIONS, {"tools": TOOLS}, "tools"),
        (COMPLETIONS, {"messages": [{"role": "user", "content": "x"}]}, "messages"),
        (COMPLETIONS, {"truncate_prompt_tokens": 3, "echo": True}, "truncate_prompt_tokens"),
        (COMPLETIONS, {"truncate_prompt_tokens": 3, "suffix": "x"}, "truncate_prompt_tokens"),
    ],
)
async def test_what_one_endpoint_has_not_is_refused_by_name(
    world: World, path: str, fields: dict[str, Any], param: str
) -> None:
    exchange = await ask(world, path, **fields)
    assert (exchange.status, exchange.json()["error"]["param"]) == (400, param), exchange.body


async def test_a_choice_may_have_any_characters(world: World) -> None:
    wanted = 'a"b\\c\nd\té\U0001f600/'
    exchange = await ask(world, COMPLETIONS, structured_outputs={"choice": [wanted]}, max_tokens=50)
    assert exchange.status == 200, json.dumps(exchange.json())
