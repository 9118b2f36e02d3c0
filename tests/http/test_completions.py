"""``/v1/completions``: answers, echo, best_of, suffix, logprobs; and timings and progress, of chats too."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.server.openai.answer import FINGERPRINT
from pyllmcancel.server.openai.logprobs import PromptText, prompt_rows
from tests.support import fake_model
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def chunks(exchange: Exchange) -> list[dict[str, Any]]:
    assert exchange.events[-1] == "[DONE]"
    assert exchange.events.count("[DONE]") == 1
    return [json.loads(event) for event in exchange.events[:-1]]


COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def choices_of(world: World, *, stream: bool = False, **fields: Any) -> dict[int, dict[str, Any]]:
    """Each choice's text, finish reason, and columns of logprobs, put together from all chunks."""
    exchange = await world.complete(stream=stream, **fields).end()
    assert exchange.status == 200, exchange.body
    found: dict[int, dict[str, Any]] = {}
    for part in chunks(exchange) if stream else [exchange.json()]:
        for choice in part["choices"]:
            own = found.setdefault(choice["index"], {"text": "", **{column: [] for column in COLUMNS}})
            assert own.get("finish_reason") is None, "nothing follows a choice's finish reason"
            own["text"] += choice["text"]
            own["finish_reason"] = choice["finish_reason"]
            for column in COLUMNS if choice["logprobs"] is not None else ():
                own[column] += choice["logprobs"][column]
    return found


async def answer(world: World, **fields: Any) -> dict[int, tuple[str, str]]:
    return {index: (own["text"], own["finish_reason"]) for index, own in (await choices_of(world, **fields)).items()}


FACTS = {"object": "text_completion", "model": "fake-model", "system_fingerprint": FINGERPRINT}


def choice_of(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


async def test_a_whole_answer(world: World) -> None:
    world.model.answers[b"hello"] = b" world"
    before = int(time.time())
    exchange = await world.complete(return_progress=True, model="any name", headers={"x-request-id": "mine"}).end()
    assert exchange.headers["content-type"] == "application/json"
    assert "x-should-retry" not in exchange.headers
    whole = exchange.json()
    assert before <= whole.pop("created") <= time.time()
    timings = whole.pop("timings")
    assert (timings["prompt_n"], timings["predicted_n"]) == (5, 7)
    assert min(timings["prompt_ms"], timings["predicted_ms"]) > 0
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    usage |= {"prompt_tokens_details": {"cached_tokens": 0}}
    assert whole == FACTS | {"id": "cmpl-mine", "choices": [choice_of(" world", "stop")], "usage": usage}


async def test_a_stream(world: World) -> None:
    world.model.answers[b"hello"] = b"abc"
    exchange = await world.running_stream("mine", prompt="hello", ignore_eos=False)
    await exchange.until_headers()
    assert exchange.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (exchange.headers["cache-control"], exchange.headers["x-accel-buffering"]) == ("no-cache", "no")
    for expected in "abc":
        await world.step()
        chunk = await exchange.next_json()
        assert chunk.pop("created") <= time.time()
        assert chunk == FACTS | {"id": "cmpl-mine", "choices": [choice_of(expected, None)]}
    await world.step()
    assert (await exchange.next_json())["choices"] == [choice_of("", "stop")]
    assert [await exchange.next_event() for _ in range(2)] == ["[DONE]", None]


@streaming
@pytest.mark.parametrize(("fields", "n_tokens"), [({"max_tokens": 3}, 3), ({}, 16), ({"max_tokens": None}, 59)])
async def test_sixteen_tokens_are_the_default_and_null_fills_the_context(
    stream: bool, fields: dict[str, Any], n_tokens: int
) -> None:
    async with open_world(n_ctx=64) as world:
        world.model.answers[b"hello"] = b"x" * 100
        assert await answer(world, stream=stream, **fields) == {0: ("x" * n_tokens, "length")}


@streaming
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("wor", "hello "),
        (["nowhere", "ld"], "hello wor"),
        (["world!", "lo w"], "hel"),
        ([], "hello world!"),
        ("", "hello world!"),
        ("world?", "hello world!"),
    ],
)
async def test_stop_strings_never_leak(world: World, stream: bool, stop: Any, expected: str) -> None:
    world.model.answers[b"say"] = b"hello world!"
    assert await answer(world, stream=stream, prompt="say", stop=stop, max_tokens=50) == {0: (expected, "stop")}


@streaming
@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"prompt": "one", "n": 3}, ["1", "1", "1"]),
        ({"prompt": ["one", "two"], "n": 2}, ["1", "1", "2", "2"]),
        ({"prompt": "one", "n": 2, "best_of": 2}, ["1", "1"]),
    ],
)
async def test_each_prompt_has_its_choices(stream: bool, fields: dict[str, Any], texts: list[str]) -> None:
    async with open_world(parallel=2) as world:
        world.model.answers |= {b"one": b"1", b"two": b"2"}
        found = await answer(world, stream=stream, **fields)
        assert found == {index: (text, "stop") for index, text in enumerate(texts)}


async def test_include_usage_comes_last_and_every_chunk_has_the_field(world: World) -> None:
    fields = {"n": 3, "max_tokens": 2, "ignore_eos": True, "stream": True}
    exchange = world.complete("12345", stream_options={"include_usage": True}, **fields)
    *earlier, last = chunks(await exchange.end())
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in earlier)
    assert last["choices"] == []
    counts = [last["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion", "total")]
    assert counts == [5, 6, 11], "the choices share the prompt"
    assert not any("usage" in chunk for chunk in chunks(await world.complete(**fields).end()))


@streaming
@pytest.mark.parametrize("said", ["ab", ""])
async def test_logprobs(world: World, stream: bool, said: str) -> None:
    world.model.answers[b"say"] = said.encode()
    exchange = await world.complete("say", logprobs=2, max_tokens=5, stream=stream).end()
    parts = chunks(exchange) if stream else [exchange.json()]
    found = [part["choices"][0]["logprobs"] for part in parts]
    assert found[0] is not None, "an answer without a token has empty columns"
    found = [logprobs for logprobs in found if logprobs is not None]
    # The token that ends the answer has no text, and no logprobs.
    assert [token for logprobs in found for token in logprobs["tokens"]] == list(said)
    assert [offset for logprobs in found for offset in logprobs["text_offset"]] == list(range(len(said)))
    for token, logprob, top in (one for own in found for one in zip(*(own[name] for name in COLUMNS[:3]), strict=True)):
        assert -0.1 < logprob <= 0
        assert top[token] == logprob
        assert len(top) == 2


TEXTS: dict[str, Callable[[Any], Any]] = {
    COMPLETIONS: lambda told: told["choices"][0]["text"],
    CHAT: lambda told: told["choices"][0]["message"]["content"],
    "/v1/responses": lambda told: told["output"][-1]["content"][0]["text"],
    "/completion": lambda told: told["content"],
}


@pytest.mark.parametrize("path", TEXTS)
async def test_every_seed_of_64_bits_gives_a_text_of_its_own_and_always_the_same(world: World, path: str) -> None:
    message = [{"role": "user", "content": "hello"}]
    body = {"temperature": 5, "top_k": 0, "ignore_eos": True}
    if path == "/v1/responses":
        body |= {"input": "hello", "max_output_tokens": 8}
        del body["ignore_eos"]
    else:
        body |= {"messages": message, "max_tokens": 8} if path == CHAT else {"prompt": "hello", "max_tokens": 8}
    seeds = (7, 7 + 2**32, 2**32 - 1, 2**53 - 1, 2**63 - 1, 2**64 - 1, -2, -(2**63))
    found = {s: [TEXTS[path]((await world.post(path, body | {"seed": s})).json()) for _ in "ab"] for s in seeds}
    assert all(first == second for first, second in found.values())
    assert len({first for first, _ in found.values()}) == len(seeds)
    for wrong in (2**64, -(2**63) - 1, 1.5, "x"):
        assert (await world.post(path, body | {"seed": wrong})).refusal == (400, "seed")


async def test_choices_of_one_prompt_differ(world: World) -> None:
    found = await answer(world, stream=False, n=3, temperature=5, seed=7, max_tokens=8, ignore_eos=True)
    assert len(set(found.values())) == 3


async def test_a_bias_bans_a_token_and_another_forces_one(world: World) -> None:
    world.model.answers[b"say"] = b"a"
    assert (await answer(world, stream=False, prompt="say", max_tokens=1, logit_bias={"97": -100}))[0][0] != "a"
    forced = await answer(world, stream=False, prompt="x", max_tokens=2, logit_bias={"98": 100})
    assert forced == {0: ("bb", "length")}


# -- echo -------------------------------------------------------------------------------------------------------------


@streaming
@pytest.mark.parametrize("prompt", ["say", list(b"say"), ["say"], [list(b"say")]])
async def test_an_echo_begins_with_the_prompt(world: World, prompt: Any, stream: bool) -> None:
    world.model.answers[b"say"] = b" yes"
    found = await choices_of(world, prompt=prompt, echo=True, stream=stream)
    assert (found[0]["text"], found[0]["tokens"]) == ("say yes", [])
    (found,) = (await choices_of(world, prompt=prompt, echo=True, logprobs=0, max_tokens=0, stream=stream)).values()
    assert (found["text"], found["finish_reason"]) == ("say", "length")
    assert (found["tokens"], found["text_offset"]) == (list("say"), [0, 1, 2])
    assert [list(top or {}) for top in found["top_logprobs"]] == [[], ["a"], ["y"]]


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


# -- suffix -----------------------------------------------------------------------------------------------------------


class FillsGaps(fake_model.Model):
    special_tokens = {"eos": fake_model.EOS, "fim_pre": 1, "fim_suf": 2, "fim_mid": 3}  # noqa: RUF012


@streaming
async def test_a_suffix_fills_the_gap_with_the_models_own_tokens_and_an_empty_one_is_none(stream: bool) -> None:
    async with open_world(model=FillsGaps()) as world:
        world.model.answers |= {b"\x01a = \x02\nreturn a\x03": b"7", b"a = ": b"8"}
        for suffix, text in (("\nreturn a", "7"), ("", "8")):
            assert (await answer(world, prompt="a = ", suffix=suffix, stream=stream))[0][0] == text


# -- logprobs go with the text ----------------------------------------------------------------------------------------


@streaming
@pytest.mark.parametrize(
    ("said", "stop", "text", "tokens", "offsets"),
    [
        ("hello world!", "lo w", "hel", list("hel"), [0, 1, 2]),
        ("hello wo", ["world"], "hello wo", list("hello wo"), list(range(8))),  # which only looks like it
        ("aéb", None, "aéb", ["a", "bytes:\\xc3", "bytes:\\xa9", "b"], [0, 1, 1, 2]),
    ],
)
async def test_logprobs_are_those_of_the_text_and_parts_of_a_character_are_bytes(
    world: World, stream: bool, *, said: str, stop: Any, text: str, tokens: list[str], offsets: list[int]
) -> None:
    world.model.answers[b"say"] = said.encode()
    found = await choices_of(world, prompt="say", stop=stop, logprobs=0, stream=stream)
    assert (found[0]["text"], found[0]["tokens"], found[0]["text_offset"]) == (text, tokens, offsets)


async def test_special_tokens_may_be_spelled_in_a_prompt() -> None:
    class ReadsSpecial(fake_model.Model):
        def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
            found = super().tokenize(text)
            return [1, *found[5:]] if parse_special and found[:5] == list(b"<fim>") else found

    async with open_world(model=ReadsSpecial()) as world:
        world.model.answers[b"\x01a = "] = b"7"
        assert (await choices_of(world, prompt="<fim>a = "))[0]["text"] == "7"


def test_a_prompt_that_was_cut_by_its_time_limit_has_no_logprobs() -> None:
    model = fake_model.Model()
    rows = prompt_rows(model, PromptText(model, "abc", list(b"abc")), [])
    assert [(name, logprob) for name, logprob, _, _ in rows] == [("a", None), ("b", None), ("c", None)]


# -- timings and the progress of the prompt, of chats too --------------------------------------------------------------


PATHS = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
LONG = "x" * 600  # more than two steps


def begin(world: World, path: str, content: str = "hello", **fields: Any) -> Exchange:
    return world.complete(content, **fields) if path == COMPLETIONS else world.chat(content, **fields)


@PATHS
@pytest.mark.parametrize(
    ("fields", "has_timings"),
    [
        ({}, [False, False, True]),
        ({"timings_per_token": True}, [True, True, True]),
        ({"stream_options": {"include_usage": True}}, [False, False, False, True]),
    ],
)
async def test_the_last_chunk_of_a_stream_has_timings_or_all_have(
    world: World, path: str, fields: dict[str, Any], has_timings: list[bool]
) -> None:
    options = {"stream": True, "max_tokens": 3, "ignore_eos": True, "top_k": 1, "logit_bias": {"97": 100}}
    chunks = (await begin(world, path, **options, **fields).end()).json_events()
    # A chat's stream has a chunk more at either end: the role, and the reason of the end.
    said = chunks[2:] if path == CHAT else chunks
    assert ["timings" in chunk for chunk in said] == has_timings
    assert said[-1]["timings"]["predicted_n"] == 3


@PATHS
async def test_the_progress_of_a_prompt_is_streamed(world: World, path: str) -> None:
    exchange = await begin(world, path, LONG, stream=True, return_progress=True, max_tokens=1).end()
    told = [chunk for chunk in exchange.json_events() if "prompt_progress" in chunk]
    progress = [chunk["prompt_progress"] for chunk in told]
    total, done = progress[0]["total"], [one["processed"] for one in progress]
    assert total >= len(LONG)
    assert (done[0], done[-1]) == (0, total)
    assert len(done) > 2
    assert done == sorted(set(done))
    for chunk in told:
        (choice,) = chunk["choices"]
        assert choice["finish_reason"] is None
        assert not (choice["delta"].get("content") if path == CHAT else choice["text"])


@PATHS
async def test_a_verbose_answer_tells_what_was_read_and_written(world: World, path: str) -> None:
    prompt = {COMPLETIONS: "hello", CHAT: "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"}[path]
    options = {"max_tokens": 3, "ignore_eos": True, "top_k": 1, "logit_bias": {"97": 100}}
    answer = (await begin(world, path, **options, verbose=True).end()).json()
    assert answer["__verbose"] == {"prompt": prompt, "content": "aaa"}
    told = (await begin(world, path, **options, verbose=True, stream=True).end()).json_events()
    assert [chunk["__verbose"] for chunk in told if "__verbose" in chunk] == [answer["__verbose"]]
    assert told[-1]["choices"][0]["finish_reason"] == "length"


@PATHS
@pytest.mark.parametrize(("fields", "is_told"), [({}, True), ({"verbose": False}, False)])
async def test_a_verbose_server_says_it_where_no_request_does(path: str, fields: dict[str, Any], is_told: bool) -> None:
    async with open_world(verbose=True) as world:
        assert ("__verbose" in (await begin(world, path, max_tokens=1, **fields).end()).json()) is is_told


async def test_a_stream_begins_while_its_request_waits() -> None:
    async with open_world(parallel=1) as world:
        await world.running_stream("neighbour", max_tokens=2)
        chat = world.chat(stream=True, max_tokens=1, headers={"x-request-id": "chat"})
        completion = world.complete(stream=True, max_tokens=1, headers={"x-request-id": "completion"})
        assert (await chat.next_json())["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        await completion.until_headers()
        assert [one["status"] for one in await world.requests()] == ["running", "waiting", "waiting"]
        world.gate.open()
        for exchange in (chat, completion):
            assert (await exchange.end()).events[-1] == "[DONE]"
