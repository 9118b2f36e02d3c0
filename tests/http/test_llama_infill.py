"""llama-server's ``/infill``, with the very bodies that an editor's plug-in sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_world import World, open_world

PRE, SUF, MID, REP, SEP = 1, 2, 3, 4, 5
SPECIAL = {"eos": 256, "fim_pre": PRE, "fim_suf": SUF, "fim_mid": MID, "fim_rep": REP, "fim_sep": SEP}
GAP = {"input_prefix": "def f():\n", "input_suffix": "\nf()\n"}
# What llama.vim sends while its user types, and between, to have the snippets in the cache.
VIM, VIM_WARMING_UP, *_ = (
    request["body"]
    for request in json.loads((Path(__file__).parent / "replay" / "llama_vim.json").read_text())["requests"]
)
VIM |= {"t_max_prompt_ms": 60_000, "t_max_predict_ms": 60_000}  # on a busy machine


def can_fill_gaps(world: World, **special: int) -> None:
    world.model.special_tokens = special or SPECIAL


async def fill(world: World, body: dict[str, Any]) -> Any:
    exchange = await world.post("/infill", body)
    assert exchange.status == 200, exchange.body
    return exchange.json()


async def test_what_llama_vim_sends_is_answered_as_it_expects(world: World) -> None:
    can_fill_gaps(world)
    prompt = bytes([REP, *b"project\n", SEP, *b"a.py\nimport math\n", SEP, *b"file\n"])
    prompt += bytes([PRE, *b"def add(a, b):\n    ", SUF, *b"\nprint(add(1, 2))\n", MID])
    world.model.answers[prompt] = b"return"
    found = await fill(world, VIM)
    assert set(found) == set(VIM["response_fields"])
    assert (found["content"], found["truncated"]) == ("return", False)
    assert found["tokens_cached"] == len(prompt) + len("return")
    assert found["timings/prompt_n"] == len(prompt)


async def test_what_llama_vim_sends_between_warms_the_cache_up(world: World) -> None:
    """It allows a millisecond for the prompt, which is all that it wants computed."""
    can_fill_gaps(world)
    body = VIM_WARMING_UP | {"input_extra": [{"text": "x" * 600, "time": [1, 2], "filename": "a.py"}]}
    assert await fill(world, body) == {}
    found = await fill(world, VIM | {"input_extra": body["input_extra"]})
    assert found["timings/prompt_n"] < 60


async def test_an_answer_ends_before_a_line_that_is_indented_too_little(world: World) -> None:
    can_fill_gaps(world)
    world.model.answers[bytes([PRE, *b"def f():\n    x", SUF, *b"\nf()\n", MID])] = b" = 1\n    y = 2\n  z"
    found = await fill(world, GAP | {"prompt": "    x", "n_indent": 4})
    assert (found["content"], found["stop_type"]) == (" = 1\n    y = 2\n  ", "limit")
    assert found["tokens_predicted"] == len(" = 1\n    y = 2\n  z")


async def test_what_surrounds_the_gap_may_be_tokens_and_texts(world: World) -> None:
    can_fill_gaps(world)
    found = await fill(world, {"input_prefix": [97, "bc"], "input_suffix": ["d", 101], "n_predict": 1})
    assert found["prompt"].encode() == bytes([PRE, *b"abc", SUF, *b"de", MID])


async def test_a_long_text_is_cut_so_that_the_answer_has_room() -> None:
    async with open_world(n_ctx=256) as world:
        can_fill_gaps(world)
        found = await fill(world, {"input_prefix": "a" * 5000, "input_suffix": "b" * 5000, "n_predict": 64})
        assert 128 < found["tokens_evaluated"] <= 256 - 64
        assert found["prompt"].endswith("b\x03")


async def test_a_huge_n_predict_leaves_half_of_the_context_to_the_prompt() -> None:
    async with open_world(n_ctx=256) as world:
        can_fill_gaps(world)
        body = {"input_prefix": "a" * 5000, "input_suffix": "", "n_predict": 100_000, "t_max_predict_ms": 1}
        assert (await fill(world, body))["tokens_evaluated"] > 100


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_prefix": 1}, "input_prefix"),
        ({"prompt": ["x"]}, "prompt"),
        ({"input_extra": {"text": "x"}}, "input_extra"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra"),
        ({"input_extra": [{"text": "x", "filename": 1}]}, "input_extra"),
        ({"input_extra": ["x"]}, "input_extra"),
    ],
)
async def test_what_cannot_be_read_is_named(world: World, fields: dict[str, Any], param: str) -> None:
    can_fill_gaps(world)
    assert (await world.post("/infill", GAP | fields)).refusal == (400, param)


async def test_a_model_that_cannot_fill_gaps_says_so(world: World) -> None:
    can_fill_gaps(world, eos=256)
    exchange = await world.post("/infill", GAP)
    assert exchange.status == 400
    assert "fim_pre" in exchange.json()["error"]["message"]
