"""Fields of ``/v1/completions`` that the chat has not: echo, best_of, suffix; and how logprobs go with the text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllmcancel.server.openai.logprobs import LegacyLogprobs, PromptText
from tests.support import fake_model
from tests.support.http_world import World, open_world

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def choices_of(world: World, *, stream: bool = False, **fields: Any) -> dict[int, dict[str, Any]]:
    """Each choice's text, finish reason, and columns of logprobs, put together from all chunks."""
    exchange = await world.complete(stream=stream, **fields).end()
    assert exchange.status == 200, exchange.body
    parts = [json.loads(event) for event in exchange.events[:-1]] if stream else [exchange.json()]
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for part in parts for choice in part["choices"]):
        own = found.setdefault(choice["index"], {"text": "", **{column: [] for column in COLUMNS}})
        own["text"] += choice["text"]
        own["finish_reason"] = choice["finish_reason"]
        for column in COLUMNS if choice["logprobs"] is not None else ():
            own[column] += choice["logprobs"][column]
    return found


# -- echo -------------------------------------------------------------------------------------------------------------


@streaming
@pytest.mark.parametrize(("prompt", "expected"), [("say", "say yes"), (list(b"say"), "say yes"), (["say"], "say yes")])
async def test_an_echo_begins_with_the_prompt(world: World, prompt: Any, expected: str, stream: bool) -> None:
    world.model.answers[b"say"] = b" yes"
    found = await choices_of(world, prompt=prompt, echo=True, stream=stream)
    assert (found[0]["text"], found[0]["tokens"]) == (expected, [])


@streaming
async def test_an_echo_has_the_logprobs_of_the_prompt(world: World, stream: bool) -> None:
    world.model.answers[b"say"] = b" yes"
    (found,) = (await choices_of(world, prompt="say", echo=True, logprobs=2, max_tokens=2, stream=stream)).values()
    assert found["text"] == "say y"
    assert found["tokens"] == list("say y")
    assert found["text_offset"] == [0, 1, 2, 3, 4]
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None), "nothing predicts the first"
    logits = world.model.logits(list(b"s"))
    assert found["token_logprobs"][1] == pytest.approx(logits[ord("a")] - fake_model.np.logaddexp.reduce(logits))
    for token, logprob, top in zip(*(found[name][1:] for name in COLUMNS[:3]), strict=True):
        assert top[token] == logprob
        assert 2 <= len(top) <= 3


@streaming
async def test_only_the_prompt_and_its_logprobs(world: World, stream: bool) -> None:
    (found,) = (await choices_of(world, prompt="say", echo=True, logprobs=0, max_tokens=0, stream=stream)).values()
    assert (found["text"], found["finish_reason"]) == ("say", "length")
    assert (found["tokens"], found["text_offset"]) == (list("say"), [0, 1, 2])
    assert [list(top or {}) for top in found["top_logprobs"]] == [[], ["a"], ["y"]]


@streaming
async def test_every_choice_of_every_prompt_has_its_echo(stream: bool) -> None:
    async with open_world(parallel=2) as world:
        world.model.answers |= {b"one": b"1", b"two!": b"2"}
        found = await choices_of(world, prompt=["one", "two!"], n=2, echo=True, logprobs=0, stream=stream)
        assert [found[index]["text"] for index in range(4)] == ["one1", "one1", "two!2", "two!2"]
        assert [found[index]["text_offset"] for index in (1, 3)] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


async def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole_again(world: World) -> None:
    await choices_of(world, prompt="the same prompt", max_tokens=1)
    exchange = await world.complete("the same prompt", echo=True, logprobs=0, max_tokens=1).end()
    assert exchange.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(exchange.json()["choices"][0]["logprobs"]["tokens"]) == len("the same prompt") + 1


async def test_a_token_before_the_text_has_no_place_in_it() -> None:
    class AddsBos(fake_model.Model):
        special_tokens = {"bos": 1, "eos": fake_model.EOS}  # noqa: RUF012

        def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
            return [1, 32, *super().tokenize(text)] if add_special else super().tokenize(text)

    async with open_world(model=AddsBos()) as world:
        (found,) = (await choices_of(world, prompt="say", echo=True, logprobs=0, max_tokens=0)).values()
        assert (found["text"], found["tokens"], found["text_offset"]) == ("say", ["", "", *"say"], [0, 0, 0, 1, 2])


# -- best_of ----------------------------------------------------------------------------------------------------------


async def test_the_best_are_those_of_the_highest_mean_logprob(world: World) -> None:
    options = {"temperature": 5, "top_k": 0, "seed": 7, "max_tokens": 6, "ignore_eos": True}
    all_four = await choices_of(world, n=4, logprobs=0, **options)
    best_two = await choices_of(world, n=2, best_of=4, **options)
    ranked = sorted(all_four.values(), key=lambda own: -sum(own["token_logprobs"]) / len(own["token_logprobs"]))
    assert [best_two[0]["text"], best_two[1]["text"]] == [own["text"] for own in ranked[:2]]
    assert ranked != list(all_four.values()), "or this would be no test"
    assert best_two[0]["tokens"] == [], "logprobs were not asked for"


async def test_the_best_of_several_prompts_and_all_are_counted(world: World) -> None:
    world.model.answers |= {b"one": b"1", b"two": b"2"}
    exchange = await world.complete(["one", "two"], best_of=3, max_tokens=4, temperature=0).end()
    body = exchange.json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "1"), (1, "2")]
    assert body["usage"]["completion_tokens"] == 3 * 2 * 2
    assert body["usage"]["prompt_tokens"] == 6


async def test_a_stream_may_have_the_best_of_all_only(world: World) -> None:
    world.model.answers[b"say"] = b"yes"
    assert set(await choices_of(world, prompt="say", n=2, best_of=2, stream=True)) == {0, 1}


# -- suffix -----------------------------------------------------------------------------------------------------------


class FillsGaps(fake_model.Model):
    special_tokens = {"eos": fake_model.EOS, "fim_pre": 1, "fim_suf": 2, "fim_mid": 3}  # noqa: RUF012


@streaming
async def test_a_suffix_fills_the_gap_with_the_models_own_tokens(stream: bool) -> None:
    async with open_world(model=FillsGaps()) as world:
        world.model.answers[b"\x01a = \x02\nreturn a\x03"] = b"7"
        found = await choices_of(world, prompt="a = ", suffix="\nreturn a", stream=stream)
        assert found[0]["text"] == "7"


async def test_an_empty_suffix_is_none(world: World) -> None:
    world.model.answers[b"a = "] = b"7"
    assert (await choices_of(world, prompt="a = ", suffix=""))[0]["text"] == "7"


# -- logprobs go with the text ----------------------------------------------------------------------------------------


@streaming
async def test_tokens_of_a_stop_string_are_not_told(world: World, stream: bool) -> None:
    world.model.answers[b"say"] = b"hello world!"
    found = await choices_of(world, prompt="say", stop="lo w", logprobs=0, stream=stream)
    assert (found[0]["text"], found[0]["tokens"]) == ("hel", list("hel"))


@streaming
async def test_tokens_that_only_looked_like_a_stop_string_are(world: World, stream: bool) -> None:
    world.model.answers[b"say"] = b"hello wo"
    found = await choices_of(world, prompt="say", stop=["world"], logprobs=0, stream=stream)
    assert (found[0]["text"], found[0]["tokens"]) == ("hello wo", list("hello wo"))
    assert found[0]["text_offset"] == list(range(8))


@streaming
async def test_parts_of_a_character_are_named_as_bytes_and_stand_where_it_does(world: World, stream: bool) -> None:
    world.model.answers[b"say"] = "aéb".encode()
    found = await choices_of(world, prompt="say", logprobs=0, stream=stream)
    assert found[0]["text"] == "aéb"
    assert found[0]["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "b"]
    assert found[0]["text_offset"] == [0, 1, 1, 2]


async def test_special_tokens_may_be_spelled_in_a_prompt() -> None:
    class ReadsSpecial(fake_model.Model):
        def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
            found = super().tokenize(text)
            return [1, *found[5:]] if parse_special and found[:5] == list(b"<fim>") else found

    async with open_world(model=ReadsSpecial()) as world:
        world.model.answers[b"\x01a = "] = b"7"
        assert (await choices_of(world, prompt="<fim>a = "))[0]["text"] == "7"


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": "yes please"}, "echo"),
        ({"mirostat": 3}, "mirostat"),
        ({"typical_p": 2}, "typical_p"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
    ],
)
async def test_fields_that_cannot_be_honoured_are_named(world: World, fields: dict[str, Any], param: str) -> None:
    assert (await world.complete(**fields).end()).refusal == (400, param)


@pytest.mark.parametrize("fields", [{"echo": True}, {"prompt": [97, 98]}])
async def test_a_suffix_goes_with_a_plain_text_only(fields: dict[str, Any]) -> None:
    async with open_world(model=FillsGaps()) as world:
        exchange = await world.complete(**({"suffix": "x"} | fields)).end()
        assert exchange.status == 400
        assert exchange.json()["error"]["param"] == ("echo" if "echo" in fields else "suffix")


# -- what must be an error of the client's ----------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[999_999_999], [[1], [999_999_999]]])
async def test_a_token_that_there_is_not_is_refused_before_it_is_echoed(world: World, prompt: Any) -> None:
    assert (await world.complete(prompt=prompt, echo=True).end()).refusal == (400, "prompt")


def test_a_prompt_that_was_cut_by_its_time_limit_has_no_logprobs() -> None:
    model = fake_model.Model()
    rows = LegacyLogprobs(model).prompt(PromptText(model, "abc", list(b"abc")), [])
    assert [(name, logprob) for name, logprob, _, _ in rows] == [("a", None), ("b", None), ("c", None)]
