"""The shapes of ``/v1/chat/completions``, whole and in chunks, and what becomes of the messages."""

import json
import time
from typing import Any

import pytest

from pyllmcancel.server.openai.answer import FINGERPRINT
from tests.support import fake_model
from tests.support.chat_models import Says, Templated
from tests.support.http_world import World, open_world

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
HELLO = b"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


FACTS = {"id": "chatcmpl-mine", "model": "fake-model", "system_fingerprint": FINGERPRINT}


async def test_a_whole_answer(world: World) -> None:
    world.model.answers[HELLO] = b"Hi!"
    whole = (await world.chat(model="x", headers={"x-request-id": "mine"}).end()).json()
    assert whole.pop("created") <= time.time()
    timings = whole.pop("timings")
    assert timings["predicted_n"] == 4
    assert min(timings["prompt_ms"], timings["predicted_ms"]) > 0
    message = {"role": "assistant", "content": "Hi!", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(HELLO), "completion_tokens": 4, "total_tokens": len(HELLO) + 4}
    usage |= {"prompt_tokens_details": {"cached_tokens": 0}}
    assert whole == FACTS | {"object": "chat.completion", "choices": [choice], "usage": usage}


async def test_a_stream_opens_with_the_role_before_anything_is_computed(world: World) -> None:
    world.model.answers[HELLO] = b"Hi"
    world.hold()
    exchange = world.chat(stream=True, n=2, headers={"x-request-id": "mine"})
    for index in range(2):
        chunk = await exchange.next_json()
        assert chunk.pop("created") <= time.time()
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        assert chunk == FACTS | {"object": "chat.completion.chunk", "choices": [choice]}
    world.gate.open()
    await exchange.end()
    chunks = [json.loads(event) for event in exchange.events[2:-1]]
    for index in range(2):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["delta"] for choice in own] == [{"content": "H"}, {"content": "i"}, {}]
        assert [choice["finish_reason"] for choice in own] == [None, None, "stop"]
    assert exchange.events[-1] == "[DONE]"


@streaming
async def test_logprobs(world: World, stream: bool) -> None:
    world.model.answers[HELLO] = "é".encode()
    exchange = await world.chat(logprobs=True, top_logprobs=2, stream=stream).end()
    parts = [json.loads(event) for event in exchange.events[1:-1]] if stream else [exchange.json()]
    found = [part["choices"][0]["logprobs"] for part in parts]
    entries = [entry for logprobs in found if logprobs is not None for entry in logprobs["content"]]
    assert all(logprobs["refusal"] is None for logprobs in found if logprobs is not None)
    assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9]], "halves of a character are told as bytes"
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "logprob", "bytes")}
        assert len(entry["top_logprobs"]) == 2


@streaming
@pytest.mark.parametrize("asked", [False, True])
async def test_logprobs_of_an_answer_without_tokens_are_empty_if_they_were_asked_for(stream: bool, asked: bool) -> None:
    async with open_world(model=Says("")) as world:
        exchange = await world.chat(logprobs=asked, stream=stream).end()
        parts = [json.loads(event) for event in exchange.events[:-1]] if stream else [exchange.json()]
        found = [part["choices"][0]["logprobs"] for part in parts]
        assert found[0] == ({"content": [], "refusal": None} if asked else None)
        assert parts[-1]["choices"][0]["finish_reason"] == "stop"
        assert set(map(str, found[1:])) <= {"None"}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_tokens": 2}, "Hi"),
        ({"max_completion_tokens": 1}, "H"),
        ({"max_tokens": 3, "max_completion_tokens": 1}, "H"),
        ({"n_predict": 2}, "Hi"),
        ({"n_predict": 3, "max_tokens": 1}, "H"),
        ({"n_predict": 0}, ""),
        ({"n_predict": -1}, "Hi there"),
        ({}, "Hi there"),
    ],
)
async def test_all_names_of_the_limit(world: World, limits: dict[str, int], expected: str) -> None:
    world.model.answers[HELLO] = b"Hi there"
    (choice,) = (await world.chat(**limits).end()).json()["choices"]
    assert choice["message"]["content"] == expected
    assert choice["finish_reason"] == ("stop" if expected == "Hi there" else "length")


async def prompt_of(world: World, *messages: dict[str, Any]) -> tuple[int, Any]:
    """Status, and the number of the prompt's tokens or the error."""
    exchange = await world.chat(messages=list(messages), max_tokens=1).end()
    answer = exchange.json()
    return exchange.status, answer["usage"]["prompt_tokens"] if exchange.status == 200 else answer["error"]


async def test_a_template_that_refuses_a_role_is_a_400_with_its_own_words() -> None:
    template = (
        "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
        "{{ raise_exception('Unknown role: ' + m.role) }}{% endif %}{{ m.content }}{% endfor %}"
    )
    async with open_world(model=Templated(template)) as world:
        status, error = await prompt_of(world, {"role": "wizard", "content": "x"})
        assert (status, error["param"]) == (400, "messages")
        assert "Unknown role: wizard" in error["message"]
        empty = {"role": "assistant"}
        assert await prompt_of(world, {"role": "user", "content": "four"}, empty, empty | {"content": None}) == (200, 4)


async def test_a_template_that_cannot_be_compiled_refuses_chats_only(caplog: pytest.LogCaptureFixture) -> None:
    async with open_world(model=Templated("{% for %}")) as world:
        assert (await world.get("/health")).status == 200
        assert (await world.complete(max_tokens=1).end()).status == 200
        status, error = await prompt_of(world, {"role": "user", "content": "x"})
        assert (status, error["param"]) == (400, "chat_template")
        assert "the chat template cannot be compiled" in caplog.text


async def test_bos_in_template_and_tokenizer_stands_once() -> None:
    class AddsBos(Templated):
        special_tokens = {"bos": 1, "eos": fake_model.EOS}  # noqa: RUF012

        def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
            found = super().tokenize(text)
            return [1, *found] if add_special else found

    async with open_world(model=AddsBos("\x01{{ messages[0].content }}{{ eos_token }}")) as world:
        assert await prompt_of(world, {"role": "user", "content": "abc"}) == (200, 4 + len("<eos>"))


@streaming
async def test_an_answer_that_goes_on_is_told_from_where_it_was_cut(stream: bool) -> None:
    async with open_world(model=Says("<think></think>The best answer is B.")) as world:
        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "The best answer"}]
        exchange = await world.chat(messages=messages, max_tokens=40, temperature=0, stream=stream).end()
        if stream:
            text = "".join(event["choices"][0]["delta"].get("content") or "" for event in exchange.json_events())
        else:
            text = exchange.json()["choices"][0]["message"]["content"]
        assert text == " is B."
