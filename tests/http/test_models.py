"""Names of the model: what is listed, what is served, and what an answer calls it."""

from typing import Any

import pytest

from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

FACTS = {"description", "n_params", "size", "n_ctx_train", "n_ctx", "n_embd", "n_vocab", "memory_kind", "layers"} | {
    "batch_invariant"
}


async def listed(world: World) -> dict[str, Any]:
    (entry,) = (await world.get("/v1/models")).json()["data"]
    return dict(entry)


async def test_the_list_has_the_models_name_and_facts() -> None:
    async with open_world(n_ctx=512, tags=("chat", "small")) as world:
        entry = await listed(world)
        assert (entry["id"], entry["object"], entry["aliases"]) == ("fake-model", "model", ["fake-model"])
        assert entry["tags"] == ["chat", "small"]
        assert set(entry["meta"]) == FACTS
        assert (entry["meta"]["n_ctx"], entry["meta"]["n_vocab"]) == (512, 257)
        assert (entry["owned_by"], entry["meta"]["memory_kind"]) == ("pyllmcancel", "attention")


@pytest.mark.parametrize(
    ("alias", "name", "aliases"),
    [
        (" fim, code,chat/model ,", "chat/model", ["chat/model", "code", "fim"]),  # the first of the alphabet
        (None, "stdlib-coder", []),  # as its file is called
    ],
)
async def test_a_model_is_found_by_each_of_its_names(alias: str | None, name: str, aliases: list[str]) -> None:
    async with open_world(alias=alias) as world:
        entry = await listed(world)
        assert (entry["id"], entry["aliases"]) == (name, aliases)
        for one in (name, *aliases):
            assert (await world.get(f"/v1/models/{one}")).json() == entry
        error = (await world.get("/v1/models/gpt-5")).json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_any_name_is_served_or_strictly_404_before_anything_is_submitted(path: str, stream: bool) -> None:
    for strict in (False, True):
        async with open_world(strict_model=strict) as world:
            begin = world.complete if path == COMPLETIONS else world.chat
            exchange = await begin(model="gpt-5", stream=stream, max_tokens=1).end()
            if not strict:
                answer = exchange.json_events()[0] if stream else exchange.json()
                assert answer["model"] == "fake-model", "the one that did it"
                continue
            error = exchange.json()["error"]
            assert (exchange.status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert "fake-model" in error["message"]
            assert await world.requests() == []


@pytest.mark.parametrize("name", ["one", "two", ""])
async def test_strictly_each_of_its_own_names_is_served_and_so_is_none(name: str) -> None:
    async with open_world(strict_model=True, alias="one,two") as world:
        exchange = await world.complete(model=name, max_tokens=1).end()
        assert (exchange.status, exchange.json()["model"]) == (200, "one")
