"""``/v1/embeddings`` and ``/v1/rerank`` over the verified fake: answers, errors, and what a client's leaving does."""

import asyncio
import base64
import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from pyllmcancel.pooling import Pooling
from pyllmcancel.server.embeddings.answer import EmbeddingAnswer, LlamaEmbeddingEntry
from pyllmcancel.server.embeddings.ranking import RankAnswer, RankedText
from pyllmcancel.server.limits import INLINE_BODY
from tests.embedding.site import EMBEDDINGS, Site, open_site
from tests.support import fake_embedder
from tests.support.fake_embedder import scores_of
from tests.support.http_asgi import LIMIT
from tests.support.http_world import open_world

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as opened:
        yield opened


@pytest.fixture
async def ranker() -> AsyncIterator[Site]:
    async with open_site(Pooling.RANK) as opened:
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


BAD_RANKINGS = {
    "a limit that the query fills": (
        {"query": "qqqq", "documents": ["a"], "truncate_prompt_tokens": 4},
        "truncate_prompt_tokens",
    ),
    "no query": ({"documents": ["a"]}, "query"),
    "an empty query": ({"query": "", "documents": ["a"]}, "query"),
    "a query that fills the context": ({"query": "q" * 64, "documents": ["a"]}, "query"),
    "a long query that nothing cuts": ({"query": "q" * 64, "texts": ["a"], "truncate": True}, "query"),
    "no documents": ({"query": "q"}, "documents"),
    "an empty list of documents": ({"query": "q", "documents": []}, "documents"),
    "numbers": ({"query": "q", "documents": [1, 2, 3]}, "documents"),
    "an object without a text": ({"query": "q", "documents": [{"title": "a"}]}, "documents"),
    "too many": ({"query": "q", "documents": ["a"] * 2049}, "documents"),
    "too long a document": ({"query": "q", "documents": ["a", "b" * 64]}, "documents"),
    "both lists": ({"query": "q", "documents": ["a"], "texts": ["a"]}, "texts"),
    "none of them": ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    "a stream of scores": ({"query": "q", "documents": ["a"], "stream": True}, "stream"),
    "other fields": ({"query": "q", "documents": [{"text": "a"}], "rank_fields": ["title"]}, "rank_fields"),
    "another side": ({"query": "q", "texts": ["a"], "truncation_direction": "up"}, "truncation_direction"),
}


@pytest.mark.parametrize("case", [*BAD, *BAD_RANKINGS])
async def test_what_can_never_be_served_is_refused_by_name(site: Site, ranker: Site, case: str) -> None:
    body, param = (BAD | BAD_RANKINGS)[case]
    asked = site.begin("POST", EMBEDDINGS, body, x_request_id="mine")
    if case in BAD_RANKINGS:
        asked = ranker.begin("POST", "/v1/rerank", body, x_request_id="mine")
    answer = await asked.end()
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


# -- rankings ----------------------------------------------------------------------------------------------------------


DOCUMENTS = ["one", "two", "three", "four", "five"]


def score_of(tokens: list[int]) -> float:
    return float(str(scores_of(tokens)[0]))


def score(pair: str) -> float:
    """The fake's tokens are bytes, and it has no special ones."""
    return score_of(list(pair.encode()))


def ranked(query: str, documents: list[str]) -> list[tuple[int, float]]:
    scores = [(index, score(query + document)) for index, document in enumerate(documents)]
    return sorted(scores, key=lambda one: -one[1])


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"])
async def test_the_answer_has_jinas_form_with_the_best_document_first(ranker: Site, path: str) -> None:
    answer = await ranker.begin("POST", path, {"query": "q", "documents": DOCUMENTS, "model": "any"}).end()
    body = answer.json()
    assert answer.status == 200
    TypeAdapter(RankAnswer).validate_python(body)
    assert [(one["index"], one["relevance_score"]) for one in body["results"]] == ranked("q", DOCUMENTS)
    n_tokens = sum(1 + len(document) for document in DOCUMENTS)
    assert body["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert (body["model"], body["object"]) == ("fake-embedder", "list")


async def test_documents_may_be_objects_and_come_back_if_asked_for(ranker: Site) -> None:
    documents = [{"text": "one", "url": "x"}, "two"]
    plain = (await ranker.rank("q", documents=["one", "two"]).end()).json()["results"]
    with_texts = (await ranker.rank("q", documents=documents, return_documents=True).end()).json()["results"]
    assert with_texts == [one | {"document": {"text": ["one", "two"][one["index"]]}} for one in plain]


async def test_texts_are_answered_in_teis_form(ranker: Site) -> None:
    body = (await ranker.rank("q", texts=DOCUMENTS).end()).json()
    TypeAdapter(list[RankedText]).validate_python(body)
    assert [(one["index"], one["score"]) for one in body] == ranked("q", DOCUMENTS)
    assert (await ranker.rank("q", texts=DOCUMENTS, raw_scores=True).end()).json() == body
    with_texts = (await ranker.rank("q", texts=DOCUMENTS, return_text=True).end()).json()
    assert [one["text"] for one in with_texts] == [DOCUMENTS[one["index"]] for one in body]


async def test_scores_that_are_not_raw_lie_between_0_and_1(ranker: Site) -> None:
    raw = (await ranker.rank("q", texts=DOCUMENTS).end()).json()
    squashed = (await ranker.rank("q", texts=DOCUMENTS, raw_scores=False).end()).json()
    assert [one["index"] for one in squashed] == [one["index"] for one in raw]
    expected = [1 / (1 + math.exp(-one["score"])) for one in raw]
    assert [one["score"] for one in squashed] == pytest.approx(expected)
    # The probabilities of a model that ends with a softmax are left as they are.
    ranker.model.metadata["general.architecture"] = "qwen3"
    assert (await ranker.rank("q", texts=DOCUMENTS, raw_scores=False).end()).json() == raw


@pytest.mark.parametrize("field", ["documents", "texts"])
@pytest.mark.parametrize(("top_n", "n"), [(1, 1), (3, 3), (99, 5), (None, 5)])
async def test_top_n_leaves_the_best(ranker: Site, field: str, top_n: int | None, n: int) -> None:
    body = (await ranker.begin("POST", "/rerank", {"query": "q", field: DOCUMENTS, "top_n": top_n}).end()).json()
    results = body["results"] if field == "documents" else body
    assert [one["index"] for one in results] == [index for index, _ in ranked("q", DOCUMENTS)[:n]]


async def test_equal_documents_keep_their_order(ranker: Site) -> None:
    body = (await ranker.rank("q", documents=["same"] * 20).end()).json()
    assert [one["index"] for one in body["results"]] == list(range(20))


async def test_special_tokens_stand_where_llama_server_puts_them(ranker: Site) -> None:
    ranker.model.special_tokens = {"bos": 1, "eos": 2, "sep": 3}
    ranker.model.adds_bos = ranker.model.adds_eos = ranker.model.adds_sep = True
    body = (await ranker.rank("q", documents=["d"]).end()).json()
    expected = score_of([1, ord("q"), 2, 3, ord("d"), 2])
    assert (body["results"][0]["relevance_score"], body["usage"]["prompt_tokens"]) == (expected, 6)
    del ranker.model.special_tokens["eos"]  # the separator stands in its place
    body = (await ranker.rank("q", documents=["d"]).end()).json()
    assert body["results"][0]["relevance_score"] == score_of([1, ord("q"), 3, 3, ord("d"), 3])


async def test_a_models_template_is_used_and_no_text_is_a_place_in_it() -> None:
    async with open_site(Pooling.RANK, template="<{query}|{document}|{query}>") as site:
        body = (await site.rank("q", documents=["d"]).end()).json()
        assert body["results"][0]["relevance_score"] == score("<q|d|q>")
        body = (await site.rank("{document}", documents=["{query}"]).end()).json()
        assert body["results"][0]["relevance_score"] == score("<{document}|{query}|{document}>")


@pytest.mark.parametrize("template", [None, "<{query}|{document}>"])
@pytest.mark.parametrize(("side", "kept"), [("right", slice(None, -36)), ("Left", slice(36, None))])
async def test_a_document_that_is_too_long_is_cut_if_asked_for(template: str | None, side: str, kept: slice) -> None:
    long = "".join(chr(97 + number % 26) for number in range(64 - 1 + 36 - (3 if template else 0)))
    async with open_site(Pooling.RANK, template=template) as site:
        refused = await site.rank("q", texts=["short", long]).end()
        assert (refused.status, refused.json()["error"]["param"]) == (400, "texts")
        sides = {"truncate": True, "truncation_direction": side}
        found = (await site.rank("q", texts=["short", long], **sides).end()).json()
        pairs = [f"<q|{text}>" if template else f"q{text}" for text in ("short", long[kept])]
        assert {one["index"]: one["score"] for one in found} == dict(enumerate(map(score, pairs)))


@pytest.mark.parametrize("template", [None, "<{query}|{document}>"])
async def test_a_limit_of_a_documents_tokens_cuts_it(template: str | None) -> None:
    async with open_site(Pooling.RANK, template=template) as site:
        given = ["abcde", "ab", "f" * 5000]
        found = (await site.rank("q", documents=given, max_tokens_per_doc=3).end()).json()["results"]
        pairs = [f"<q|{text}>" if template else f"q{text}" for text in ("abc", "ab", "fff")]
        assert {one["index"]: one["relevance_score"] for one in found} == dict(enumerate(map(score, pairs)))


@pytest.mark.parametrize("template", [None, "<{query}|{document}>"])
async def test_a_limit_of_a_pairs_tokens_cuts_its_document(template: str | None) -> None:
    async with open_site(Pooling.RANK, template=template) as site:
        for limit in (-1, 8):
            found = await site.rank("q", documents=["ab", "f" * 5000], truncate_prompt_tokens=limit).end()
            room = (64 if limit < 0 else limit) - (4 if template else 1)
            pairs = [f"<q|{text}>" if template else f"q{text}" for text in ("ab", "f" * room)]
            scores = {one["index"]: one["relevance_score"] for one in found.json()["results"]}
            assert scores == dict(enumerate(map(score, pairs)))


async def test_a_pair_that_is_too_long_says_how_long_it_may_be(ranker: Site) -> None:
    error = (await ranker.rank("q", documents=["a", "b" * 64]).end()).json()["error"]
    assert error["message"].startswith("document 1 is too large: 65 tokens with the query, but this model ranks")
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 65, 64)


async def test_the_query_counts_in_each_pair_and_is_tokenized_once(
    ranker: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyllmcancel.server.embeddings.ranking.MAX_PAIR_TOKENS", 1000)
    body = {"query": "q" * 40, "documents": ["d"] * 200}
    assert len(str(body)) < INLINE_BODY
    workers = ranker.app.state.server.workers
    run, begun = workers.run, []

    def count(*given: Any) -> Any:
        begun.append(given)
        return run(*given)

    monkeypatch.setattr(workers, "run", count)
    answer = await ranker.begin("POST", "/v1/rerank", body).end()
    assert (answer.status, answer.json()["error"]["param"]) == (400, "documents")
    assert len(begun) == 1


async def test_a_model_that_ranks_does_nothing_else(ranker: Site) -> None:
    for path in (EMBEDDINGS, "/embeddings"):
        answer = await ranker.begin("POST", path, {"input": "a"}).end()
        error = answer.json()["error"]
        assert (answer.status, error["param"]) == (400, "model")
        assert error["message"] == "this model ranks documents and makes no embeddings"
    assert (await ranker.begin("POST", "/v1/completions", {"prompt": "a"}).end()).status == 400


async def test_other_models_do_not_rank() -> None:
    body = {"query": "q", "documents": ["a"]}
    async with open_site() as site, open_world() as world:
        for answer in (await site.begin("POST", "/v1/rerank", body).end(), await world.post("/v1/rerank", body)):
            assert (answer.status, answer.json()["error"]["message"]) == (400, "this model does not rank documents")
