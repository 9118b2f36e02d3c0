"""Drafts as clients see them: the tokens are the same, and answers, lists and metrics say how many were drafted."""

import logging
from typing import Any

import pytest

from pyllmcancel.requests.request import Request
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, accepted, open_world, unnamed

PROMPT = "a prompt that is asked again"
ANSWER = "the answer to it, which has some length"
FILE = "one two three four five six seven eight nine ten eleven twelve"
CHANGED = FILE.replace("six", "6")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 100}


def known(world: World, prompt: str = PROMPT, answer: str = ANSWER) -> None:
    world.model.answers[prompt.encode()] = answer.encode()


async def completed(world: World, prompt: str = PROMPT, **fields: Any) -> Exchange:
    exchange = await world.complete(prompt, **GREEDY | fields).end()
    assert exchange.status == 200, exchange.body
    return exchange


def text(exchange: Exchange) -> str:
    return exchange.json()["choices"][0]["text"]


def counts(exchange: Exchange) -> tuple[int, int]:
    timings = exchange.json()["timings"]
    assert ("draft_n" in timings) == ("draft_n_accepted" in timings) == ("x-draft" in exchange.headers)
    return timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def predicted(exchange: Exchange) -> tuple[int, int]:
    details = exchange.json()["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


async def n_computed(world: World) -> int:
    """The number of steps so far."""
    return (await world.get("/v1/steps")).json()["n_steps"]


async def test_an_answer_that_is_asked_again_is_known(world: World) -> None:
    known(world)
    first = await completed(world)
    n_steps = await n_computed(world)
    again = await completed(world)
    assert await n_computed(world) == n_steps
    n = first.json()["usage"]["completion_tokens"]
    assert (text(first), text(again)) == (ANSWER, ANSWER)
    assert (counts(first), counts(again)) == ((0, 0), (n, n))
    assert again.headers["x-draft"] == f"past {n}/{n}"
    assert again.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": len(PROMPT)}
    assert again.json()["usage"]["completion_tokens"] == n
    shown = (await world.get("/metrics")).body.decode()
    assert "pyllmcancel_past_answers_bytes 0.0" not in shown
    for name in ("drafted", "accepted_draft"):
        assert f'pyllmcancel_{name}_tokens_total{{source="past"}} {float(n)}' in shown
    stream = await world.complete(PROMPT, stream=True, **GREEDY).end()
    assert "".join(chunk["choices"][0]["text"] for chunk in stream.json_events()) == ANSWER
    timings = stream.json_events()[-1]["timings"]
    assert timings["draft_n"] == timings["draft_n_accepted"] == timings["predicted_n"] == n == len(ANSWER) + 1
    assert "x-draft" not in stream.headers
    wrong = await completed(world, prediction={"type": "content", "content": "0123456789"}, cache_prompt=False)
    assert (text(wrong), predicted(wrong)) == (ANSWER, (0, 0)), "a wrong one is counted all the same"


async def test_llama_servers_own_answers_have_them_too(world: World) -> None:
    known(world)
    body = {"prompt": PROMPT, "n_predict": 100, "temperature": 0}
    first, again = [(await world.post("/completion", body)).json() for _ in range(2)]
    assert first["content"] == again["content"] == ANSWER
    assert "draft_n" not in first["timings"]
    assert again["timings"]["draft_n"] == again["timings"]["draft_n_accepted"] == len(ANSWER) + 1
    assert again["generation_settings"]["speculative.types"] == "past,prediction,ngram"


async def test_a_request_may_refuse_drafts(world: World) -> None:
    known(world)
    await completed(world)
    n_steps = await n_computed(world)
    refused = await completed(world, **{"speculative.n_max": 0})
    assert (text(refused), counts(refused)) == (ANSWER, (0, 0))
    assert await n_computed(world) - n_steps > len(ANSWER)
    body = {"prompt": PROMPT, "n_predict": 100, "temperature": 0, "speculative.n_max": 0}
    own = (await world.post("/completion", body)).json()
    assert ("draft_n" in own["timings"], own["generation_settings"]["speculative.types"]) == (False, "none")


async def test_a_draft_is_at_most_as_long_as_the_request_says(world: World) -> None:
    known(world, "write it", CHANGED)
    prediction = {"type": "content", "content": FILE}
    limited = await completed(world, "write it", prediction=prediction, **{"speculative.n_max": 1})
    assert text(limited) == CHANGED
    steps = (await world.get("/v1/steps?limit=1000")).json()["data"]
    parts = [part for step in steps for part in step["sequences"]]
    assert max(part["n_drafted"] for part in parts) == 1
    n_accepted, n_rejected = predicted(limited)
    assert sum(part["n_accepted"] for part in parts) == n_accepted
    assert sum(part["n_drafted"] for part in parts) == n_accepted + n_rejected


@pytest.mark.parametrize("refusal", [{"draft_sources": ()}, {"draft_max": 0}])
async def test_a_server_without_drafts_has_none(refusal: dict[str, Any]) -> None:
    async with open_world(**refusal) as world:
        known(world)
        await completed(world)
        n_steps = await n_computed(world)
        again = await completed(world, prediction={"type": "content", "content": ANSWER})
        assert (text(again), await n_computed(world) - n_steps > len(ANSWER)) == (ANSWER, True)
        assert "draft_n" not in again.json()["timings"]
        assert predicted(again) == (0, 0)
        assert (await world.get("/slots")).json()[0]["speculative"] is False


async def test_another_keys_answers_are_never_drafts() -> None:
    async with open_world(api_keys=unnamed("one", "two")) as world:
        known(world)
        told = []
        for key in ("one", "two", "one"):
            headers = {"authorization": f"Bearer {key}"}
            exchange = await world.complete(PROMPT, headers=headers, **GREEDY).end()
            assert text(exchange) == ANSWER
            told.append(counts(exchange))
        assert told == [(0, 0), (0, 0), (len(ANSWER) + 1,) * 2]


async def test_a_prediction_is_counted_as_openai_counts_it(world: World) -> None:
    known(world, "write it", CHANGED)
    plain = await completed(world, "write it", cache_prompt=False)
    assert "completion_tokens_details" not in plain.json()["usage"]
    n_steps = await n_computed(world)
    exchange = await completed(world, "write it", prediction={"type": "content", "content": FILE}, cache_prompt=False)
    lines = (await world.get("/metrics")).body.decode().splitlines()
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    assert text(exchange) == text(plain) == CHANGED
    assert await n_computed(world) - n_steps < len(CHANGED) / 2
    accepted_tokens, rejected_tokens = predicted(exchange)
    assert len(CHANGED) / 2 < accepted_tokens < len(CHANGED)
    assert 0 < rejected_tokens < len(FILE)
    drafted, kept = ("pyllmcancel_drafted_tokens_total", "pyllmcancel_accepted_draft_tokens_total")
    assert found[f'{drafted}{{source="prediction"}}'] == accepted_tokens + rejected_tokens
    assert found[f'{kept}{{source="prediction"}}'] == accepted_tokens
    assert found[f'{kept}{{source="ngram"}}'] <= found[f'{drafted}{{source="ngram"}}']
    assert f"prediction {accepted_tokens}/{accepted_tokens + rejected_tokens}" in exchange.headers["x-draft"]
    assert exchange.json()["usage"]["completion_tokens"] == plain.json()["usage"]["completion_tokens"]


BAD_CONTENT = (7, [], ["the text"], [{"type": "image_url", "text": "x"}], [{"type": "text", "text": "x"}] * 1025)


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        ("the text", ""),
        ({"type": "content"}, "prediction.content"),
        ({"content": "the text"}, "prediction.type"),
        *(({"type": "content", "content": content}, "prediction.content") for content in BAD_CONTENT),
        ({"type": "text", "content": "the text"}, "prediction.type"),
    ],
)
async def test_a_prediction_of_another_shape_is_refused(world: World, prediction: Any, words: str) -> None:
    made = accepted(world)
    for begin in (world.chat, world.complete):
        refused = await begin("x", prediction=prediction).end()
        assert (refused.refusal, made) == ((400, "prediction"), [])
        assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize("n_max", [-1, 2**31, "many", 0.5])
async def test_a_limit_of_drafts_that_is_none_is_refused(world: World, n_max: Any) -> None:
    body = {"prompt": "x", "input_prefix": "", "input_suffix": "", "speculative.n_max": n_max}
    for path in ("/completion", "/infill", "/v1/completions"):
        refused = await world.post(path, body)
        assert refused.status == 400
        assert "speculative.n_max" in refused.body.decode()


async def test_a_prediction_longer_than_the_context_is_cut() -> None:
    async with open_world(n_ctx=512) as world:
        known(world)
        made: list[Request] = accepted(world)
        exchange = await completed(world, prediction={"type": "content", "content": "x" * 100_000})
        assert text(exchange) == ANSWER
        assert len(made[0].params.prediction) == 512


async def test_the_list_and_the_log_say_what_was_drafted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    known(world)
    await completed(world)
    n = len(ANSWER) + 1
    with caplog.at_level(logging.INFO, "pyllmcancel.engine"):
        again = await completed(world)
    request_id = again.headers["x-request-id"]
    assert (await world.request(request_id))["drafts"] == [{"source": "past", "drafted": n, "accepted": n}]
    assert f"{n} generated (accepted drafts: past {n} of {n})" in caplog.text
    # The other line of this request, that it was added, may come after this one: two threads write them.
    (record,) = [record for record in caplog.records if " finished " in record.getMessage()]
    assert vars(record)["request_id"] == request_id
    assert vars(record)["drafted_tokens"] == vars(record)["accepted_draft_tokens"] == n
