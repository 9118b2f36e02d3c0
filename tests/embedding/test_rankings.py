"""``/v1/rerank`` over the verified fake: the forms of the answer, the tokens of pairs, the errors, and cancels."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from pyllmcancel.pooling import Pooling
from pyllmcancel.server.embeddings.ranking import RankAnswer, RankedText
from pyllmcancel.server.limits import INLINE_BODY
from tests.embedding.site import EMBEDDINGS, Site, open_site
from tests.support.fake_embedder import scores_of
from tests.support.http_world import open_world

pytestmark = pytest.mark.anyio
DOCUMENTS = ["one", "two", "three", "four", "five"]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(Pooling.RANK) as opened:
        yield opened


def score_of(tokens: list[int]) -> float:
    return float(str(scores_of(tokens)[0]))


def score(pair: str) -> float:
    """The fake's tokens are bytes, and it has no special ones."""
    return score_of(list(pair.encode()))


def ranked(query: str, documents: list[str]) -> list[tuple[int, float]]:
    scores = [(index, score(query + document)) for index, document in enumerate(documents)]
    return sorted(scores, key=lambda one: -one[1])


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking"])
async def test_the_answer_has_jinas_form_with_the_best_document_first(site: Site, path: str) -> None:
    answer = await site.begin("POST", path, {"query": "q", "documents": DOCUMENTS, "model": "any"}).end()
    body = answer.json()
    assert answer.status == 200
    TypeAdapter(RankAnswer).validate_python(body)
    assert [(one["index"], one["relevance_score"]) for one in body["results"]] == ranked("q", DOCUMENTS)
    n_tokens = sum(1 + len(document) for document in DOCUMENTS)
    assert body["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert (body["model"], body["object"]) == ("fake-embedder", "list")


async def test_documents_may_be_objects_and_come_back_if_asked_for(site: Site) -> None:
    documents = [{"text": "one", "url": "x"}, "two"]
    plain = (await site.rank("q", documents=["one", "two"]).end()).json()["results"]
    with_texts = (await site.rank("q", documents=documents, return_documents=True).end()).json()["results"]
    assert with_texts == [one | {"document": {"text": ["one", "two"][one["index"]]}} for one in plain]


async def test_texts_are_answered_in_teis_form(site: Site) -> None:
    body = (await site.rank("q", texts=DOCUMENTS).end()).json()
    TypeAdapter(list[RankedText]).validate_python(body)
    assert [(one["index"], one["score"]) for one in body] == ranked("q", DOCUMENTS)
    assert (await site.rank("q", texts=DOCUMENTS, raw_scores=True).end()).json() == body
    with_texts = (await site.rank("q", texts=DOCUMENTS, return_text=True).end()).json()
    assert [one["text"] for one in with_texts] == [DOCUMENTS[one["index"]] for one in body]


async def test_scores_that_are_not_raw_lie_between_0_and_1(site: Site) -> None:
    raw = (await site.rank("q", texts=DOCUMENTS).end()).json()
    squashed = (await site.rank("q", texts=DOCUMENTS, raw_scores=False).end()).json()
    assert [one["index"] for one in squashed] == [one["index"] for one in raw]
    expected = [1 / (1 + math.exp(-one["score"])) for one in raw]
    assert [one["score"] for one in squashed] == pytest.approx(expected)
    # The probabilities of a model that ends with a softmax are left as they are.
    site.model.metadata["general.architecture"] = "qwen3"
    assert (await site.rank("q", texts=DOCUMENTS, raw_scores=False).end()).json() == raw


@pytest.mark.parametrize("field", ["documents", "texts"])
@pytest.mark.parametrize(("top_n", "n"), [(1, 1), (3, 3), (99, 5), (None, 5)])
async def test_top_n_leaves_the_best(site: Site, field: str, top_n: int | None, n: int) -> None:
    body = (await site.begin("POST", "/rerank", {"query": "q", field: DOCUMENTS, "top_n": top_n}).end()).json()
    results = body["results"] if field == "documents" else body
    assert [one["index"] for one in results] == [index for index, _ in ranked("q", DOCUMENTS)[:n]]


async def test_equal_documents_keep_their_order(site: Site) -> None:
    body = (await site.rank("q", documents=["same"] * 20).end()).json()
    assert [one["index"] for one in body["results"]] == list(range(20))


async def test_special_tokens_stand_where_llama_server_puts_them(site: Site) -> None:
    site.model.special_tokens = {"bos": 1, "eos": 2, "sep": 3}
    site.model.adds_bos = site.model.adds_eos = site.model.adds_sep = True
    body = (await site.rank("q", documents=["d"]).end()).json()
    expected = score_of([1, ord("q"), 2, 3, ord("d"), 2])
    assert (body["results"][0]["relevance_score"], body["usage"]["prompt_tokens"]) == (expected, 6)
    del site.model.special_tokens["eos"]  # the separator stands in its place
    body = (await site.rank("q", documents=["d"]).end()).json()
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


BAD = {
    "a limit that the query fills": (
        {"query": "qqqq", "documents": ["a"], "truncate_prompt_tokens": 4},
        "truncate_prompt_tokens",
    ),
    "no query": ({"documents": ["a"]}, "query"),
    "an empty query": ({"query": "", "documents": ["a"]}, "query"),
    "a query that fills the context": ({"query": "q" * 64, "documents": ["a"]}, "query"),
    "a long query that nothing cuts": ({"query": "q" * 64, "texts": ["a"], "truncate": True}, "query"),
    "no documents": ({"query": "q"}, "documents"),
    "an empty list": ({"query": "q", "documents": []}, "documents"),
    "numbers": ({"query": "q", "documents": [1, 2, 3]}, "documents"),
    "an object without a text": ({"query": "q", "documents": [{"title": "a"}]}, "documents"),
    "too many": ({"query": "q", "documents": ["a"] * 2049}, "documents"),
    "too long a document": ({"query": "q", "documents": ["a", "b" * 64]}, "documents"),
    "both lists": ({"query": "q", "documents": ["a"], "texts": ["a"]}, "texts"),
    "none of them": ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    "a stream": ({"query": "q", "documents": ["a"], "stream": True}, "stream"),
    "other fields": ({"query": "q", "documents": [{"text": "a"}], "rank_fields": ["title"]}, "rank_fields"),
    "another side": ({"query": "q", "texts": ["a"], "truncation_direction": "up"}, "truncation_direction"),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD.keys())
async def test_what_can_never_be_ranked_is_refused_by_name(site: Site, body: dict[str, Any], param: str) -> None:
    answer = await site.begin("POST", "/v1/rerank", body, x_request_id="mine").end()
    error = answer.json()["error"]
    assert answer.status == 400
    assert error["param"].split(".")[0] == param
    assert (error["type"], error["request_id"]) == ("invalid_request_error", "mine")


async def test_a_pair_that_is_too_long_says_how_long_it_may_be(site: Site) -> None:
    error = (await site.rank("q", documents=["a", "b" * 64]).end()).json()["error"]
    assert error["message"].startswith("document 1 is too large: 65 tokens with the query, but this model ranks")
    assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 65, 64)


async def test_the_query_counts_in_each_pair_and_is_tokenized_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.server.embeddings.ranking.MAX_PAIR_TOKENS", 1000)
    body = {"query": "q" * 40, "documents": ["d"] * 200}
    assert len(str(body)) < INLINE_BODY
    workers = site.app.state.server.workers
    run, begun = workers.run, []

    def count(*given: Any) -> Any:
        begun.append(given)
        return run(*given)

    monkeypatch.setattr(workers, "run", count)
    answer = await site.begin("POST", "/v1/rerank", body).end()
    assert (answer.status, answer.json()["error"]["param"]) == (400, "documents")
    assert len(begun) == 1


async def test_a_model_that_ranks_does_nothing_else(site: Site) -> None:
    for path in (EMBEDDINGS, "/embeddings"):
        answer = await site.begin("POST", path, {"input": "a"}).end()
        error = answer.json()["error"]
        assert (answer.status, error["param"]) == (400, "model")
        assert error["message"] == "this model ranks documents and makes no embeddings"
    assert (await site.begin("POST", "/v1/completions", {"prompt": "a"}).end()).status == 400


async def test_other_models_do_not_rank() -> None:
    body = {"query": "q", "documents": ["a"]}
    async with open_site() as site, open_world() as world:
        for answer in (await site.begin("POST", "/v1/rerank", body).end(), await world.post("/v1/rerank", body)):
            assert (answer.status, answer.json()["error"]["message"]) == (400, "this model does not rank documents")
