"""The official ``openai`` client against a real server and the packaged model: what each parameter gets."""

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from pyllmcancel.models import packaged_model_path
from tests.support.http_process import ServerProcess

HELLO: Any = [{"role": "user", "content": "Hello!"}]
PROMPT = "def add(a, b):\n    "
SHORT: Any = {"model": "any", "prompt": PROMPT, "max_tokens": 8, "seed": 1}


class Verdict(BaseModel):
    sure: bool
    grade: Literal["good", "bad"]


@pytest.fixture(scope="module")
def packaged() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process.started()
        process.wait_idle()


@pytest.fixture
def client(packaged: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{packaged.url}/v1", api_key="none", max_retries=0) as made:
        yield made


# -- completions ------------------------------------------------------------------------------------------------------


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(**SHORT, user="me", stop=["\x00"])
    assert answer.object == "text_completion"
    assert answer.id == f"cmpl-{answer._request_id}"
    assert answer.model == packaged_model_path().stem
    assert answer.system_fingerprint
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_logprobs(client: openai.OpenAI, stream: bool) -> None:
    answer: Any = client.completions.create(**SHORT, echo=True, logprobs=3, stream=stream)
    parts = list(answer) if stream else [answer]
    text = "".join(part.choices[0].text for part in parts)
    found = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs is not None]
    tokens = [token for logprobs in found for token in logprobs.tokens]
    offsets = [offset for logprobs in found for offset in logprobs.text_offset]
    assert text.startswith(PROMPT)
    assert "".join(tokens) == text
    for token, offset in zip(tokens, offsets, strict=True):
        assert text[offset:].startswith(token)
    assert found[0].token_logprobs[0] is None
    assert all(logprob <= 0 for logprobs in found for logprob in logprobs.token_logprobs if logprob is not None)


def test_the_logprobs_of_a_prompt_are_those_that_it_had_as_an_answer(client: openai.OpenAI) -> None:
    said = client.completions.create(**SHORT | {"max_tokens": 6}, temperature=0, logprobs=1).choices[0]
    echoed = client.completions.create(
        model="any", prompt=PROMPT + said.text, max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    assert echoed.text == PROMPT + said.text
    assert said.logprobs is not None
    assert echoed.logprobs is not None
    assert (echoed.logprobs.tokens or [])[-6:] == said.logprobs.tokens
    assert (echoed.logprobs.token_logprobs or [])[-6:] == pytest.approx(said.logprobs.token_logprobs, abs=0.05)


# -- chat -------------------------------------------------------------------------------------------------------------


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, *HELLO],
        max_completion_tokens=5,
        n=2,
        modalities=["text"],
        verbosity="medium",
        prediction={"type": "content", "content": "Hello!"},
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="x",
        safety_identifier="me",
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content for choice in answer.choices)
    assert answer.id == f"chatcmpl-{answer._request_id}"
    assert answer.service_tier == "default"


def test_parse_gives_the_object_that_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="any", messages=HELLO, response_format=Verdict, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def test_the_stream_helper_tells_of_content(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="any", messages=HELLO, temperature=0, stop=["."], stream_options={"include_usage": True}
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content
    assert final.usage is not None
    assert final.usage.completion_tokens > 1


# -- async ------------------------------------------------------------------------------------------------------------
