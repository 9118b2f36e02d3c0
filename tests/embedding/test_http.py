"""``/v1/embeddings`` over the verified fake: the answer's shape, the errors, and what a client's leaving does."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pyllmcancel.pooling import Pooling
from pyllmcancel.server.embeddings.answer import EmbeddingAnswer, LlamaEmbeddingEntry
from tests.embedding.site import EMBEDDINGS, Site, open_site
from tests.support import fake_embedder
from tests.support.http_asgi import LIMIT
from tests.support.http_world import open_world

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as opened:
        yield opened


def expected(text: str) -> list[float]:
    return fake_embedder.embedding_of(list(text.encode())).tolist()


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("hello", ["hello"]),
        (["one", "two", "three"], ["one", "two", "three"]),
        ([104, 105], ["hi"]),
        ([[104, 105], [106]], ["hi", "j"]),
        ([104, "i", 106], ["hij"]),
        (["hi", [106, "k"], {"prompt_string": "l"}], ["hi", "jk", "l"]),
        ({"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}, ["hi"]),
    ],
    ids=["text", "texts", "tokens", "lists of tokens", "tokens and texts", "of all kinds", "parts"],
)
async def test_the_answer_has_openais_shape(site: Site, given: Any, texts: list[str]) -> None:
    answer = await site.embed(given, model="anything", user="me").end()
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    TypeAdapter(EmbeddingAnswer).validate_python(body)
    n_tokens = sum(map(len, texts))
    assert body["model"] == "fake-embedder"
    assert body["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert [entry["index"] for entry in body["data"]] == list(range(len(texts)))
    found = [np.array(entry["embedding"], np.float32).tolist() for entry in body["data"]]
    assert found == [expected(text) for text in texts]


async def test_null_is_as_good_as_nothing(site: Site) -> None:
    nulls = dict.fromkeys(("model", "encoding_format", "dimensions", "user", "stream", "timeout"))
    assert (await site.embed("hi", **nulls).end()).json() == (await site.embed("hi").end()).json()


async def test_base64_holds_the_same_numbers(site: Site) -> None:
    body = (await site.embed("hello", encoding_format="base64").end()).json()
    numbers = np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4")
    assert numbers.tolist() == expected("hello")


BAD = {
    "an empty text": ({"input": ""}, "input"),
    "an empty list": ({"input": []}, "input"),
    "an object with two": ({"input": {"prompt_string": "a", "content": [{"type": "text", "text": "a"}]}}, "input"),
    "a picture": ({"input": {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}}, "input"),
    "a picture's data": ({"input": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, "input"),
    "nothing": ({}, "input"),
    "a negative token": ({"input": [-1]}, "input"),
    "an unknown token": ({"input": [300]}, "input"),
    "too many texts": ({"input": ["a"] * 2049}, "input"),
    "too long a text": ({"input": ["a", "b" * 65]}, "input"),
    "an unknown format": ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    "no dimensions": ({"input": "a", "dimensions": 0}, "dimensions"),
    "fewer dimensions": ({"input": "a", "dimensions": 4}, "dimensions"),
    "a stream": ({"input": "a", "stream": True}, "stream"),
    "a negative timeout": ({"input": "a", "timeout": -1}, "timeout"),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD.keys())
async def test_what_can_never_be_served_is_refused_by_name(site: Site, body: dict[str, Any], param: str) -> None:
    answer = await site.begin("POST", EMBEDDINGS, body, x_request_id="mine").end()
    assert answer.status == 400
    error = answer.json()["error"]
    assert error["param"].split(".")[0] == param
    assert (error["type"], error["request_id"]) == ("invalid_request_error", "mine")


async def test_a_text_that_is_too_long_says_how_long_it_may_be(site: Site) -> None:
    error = (await site.embed(["a", "b" * 65]).end()).json()["error"]
    assert error["message"] == "text 1 is too large: 65 tokens, but this model embeds at most 64"
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 65, 64)


async def test_a_model_made_for_it_is_cut_and_scaled_to_length_one_again() -> None:
    async with open_site(matryoshka=True) as site:
        body = (await site.embed("hello", dimensions=3).end()).json()
        found = np.array(body["data"][0]["embedding"])
        whole = np.array(expected("hello"))[:3]
        np.testing.assert_allclose(found, whole / np.linalg.norm(whole), atol=1e-6)
        too_many = await site.embed("hello", dimensions=9).end()
        assert (too_many.status, too_many.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "hello"}), ("/completion", {"prompt": "hello"})],
)
async def test_a_model_that_pools_does_not_generate(site: Site, path: str, body: dict[str, Any]) -> None:
    answer = await site.begin("POST", path, body).end()
    assert answer.status == 400
    assert answer.json()["error"]["message"] == "this model makes embeddings and does not generate text"


async def test_a_model_that_generates_does_not_pool() -> None:
    async with open_world() as world:
        answer = await world.post(EMBEDDINGS, {"input": "hello"})
        assert answer.status == 400
        error = answer.json()["error"]
        assert (error["message"], error["param"]) == ("this model does not pool, so it makes no embeddings", "model")


@pytest.mark.parametrize("path", ["/embeddings", "/embedding"])
@pytest.mark.parametrize("field", ["input", "content"])
async def test_llama_servers_form_is_a_list(site: Site, path: str, field: str) -> None:
    answer = await site.begin("POST", path, {field: ["one", "two"], "embd_normalize": 2}).end()
    TypeAdapter(list[LlamaEmbeddingEntry]).validate_python(answer.json())
    assert [entry["index"] for entry in answer.json()] == [0, 1]
    found = [np.array(entry["embedding"], np.float32).tolist() for entry in answer.json()]
    assert found == [[expected("one")], [expected("two")]]


async def test_without_pooling_each_token_has_its_vector_in_llama_servers_form() -> None:
    async with open_site(Pooling.NONE) as site:
        answer = await site.begin("POST", "/embeddings", {"input": ["one", [104, 105]]}).end()
        found = [np.array(entry["embedding"], np.float32) for entry in answer.json()]
        for vectors, text in zip(found, ("one", "hi"), strict=True):
            np.testing.assert_array_equal(vectors, fake_embedder.token_embeddings_of(list(text.encode())))


async def test_without_pooling_there_is_no_openai_form() -> None:
    async with open_site(Pooling.NONE) as site:
        answer = await site.embed("one").end()
        assert (answer.status, answer.json()["error"]["param"]) == (400, "model")
        assert answer.json()["error"]["message"].startswith("this model embeds tokens (--pooling none)")


async def test_an_answer_with_too_many_numbers_is_refused_before_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.embeddings.workload.MAX_NUMBERS", 10 * fake_embedder.N_EMBD)
    async with open_site(Pooling.NONE) as site:
        fits, refused = [await site.begin("POST", "/embeddings", {"input": ["a"] * n}).end() for n in (10, 11)]
        assert (fits.status, refused.status, refused.json()["error"]["param"]) == (200, 400, "input")


@pytest.mark.parametrize("fields", [{"embd_normalize": -1}, {"encoding_format": "base64"}, {"input": None}])
async def test_llama_servers_form_refuses_what_it_cannot_give(site: Site, fields: dict[str, Any]) -> None:
    answer = await site.begin("POST", "/embeddings", {"input": "a"} | fields).end()
    assert (answer.status, answer.json()["error"]["param"]) == (400, next(iter(fields)))


async def test_a_client_that_leaves_in_the_middle_of_a_list_stops_the_step(site: Site) -> None:
    site.gate.hold()
    leaver = site.embed([f"text {number}" for number in range(500)], headers={"x_request_id": "leaver"})
    await site.held()
    site.gate.let_through()
    await site.held()
    stayer = site.embed("stayer", headers={"x_request_id": "stayer"})
    await asyncio.wait_for(site.metrics.arrivals["stayer"].wait(), LIMIT)
    leaver.leave()
    seen = await site.ended("leaver")
    assert (seen["status"], seen["cancel_reason"], seen["phase"]) == ("cancelled", "disconnect", "prefill")
    assert 0 < seen["prompt_tokens_done"] < seen["prompt_tokens"]
    site.gate.open()
    body = (await stayer.end()).json()
    assert np.array(body["data"][0]["embedding"], np.float32).tolist() == expected("stayer")
    assert site.engine.trace.snapshot()[1].status == "aborted"
    last = site.engine.trace.snapshot()[-1]
    assert {entry[0] for entry in last.sequences} == {"stayer"}


async def test_a_cancel_by_id_answers_both_when_the_computation_has_stopped(site: Site) -> None:
    site.gate.hold()
    asked = site.embed(["a", "b"], headers={"x_request_id": "mine"})
    await site.held()
    told = (await site.begin("POST", "/v1/requests/mine/cancel").end()).json()
    assert (told["outcome"], told["reason"], told["phase"]) == ("cancelled", "explicit", "prefill")
    answer = await asked.end()
    assert (answer.status, answer.json()["error"]["code"]) == (499, "explicit")
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["usage"]["prompt_tokens"] == 0


async def test_numbers_that_are_no_embedding_fail_their_request_alone(site: Site) -> None:
    site.embedder.faulty.add(tuple(b"bad"))
    good, bad = site.embed("good"), site.embed(["fine", "bad"])
    assert (await bad.end()).json()["error"]["code"] == "request_failed"
    assert bad.status == 500
    assert (await good.end()).status == 200
