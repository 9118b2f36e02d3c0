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


async def test_of_several_aliases_the_alphabetically_first_is_the_id() -> None:
    async with open_world(alias=" fim, code,chat/model ,") as world:
        entry = await listed(world)
        assert entry["id"] == "chat/model"
        assert entry["aliases"] == ["chat/model", "code", "fim"]


async def test_without_an_alias_it_is_called_as_its_file_is() -> None:
    async with open_world(alias=None) as world:
        assert ((await listed(world))["id"], (await listed(world))["aliases"]) == ("stdlib-coder", [])


@pytest.mark.parametrize("name", ["fim", "a/b"])
async def test_a_model_is_found_by_each_of_its_names(name: str) -> None:
    async with open_world(alias="fim,a/b") as world:
        assert (await world.get(f"/v1/models/{name}")).json() == await listed(world)


async def test_a_model_that_is_not_served_is_not_found(world: World) -> None:
    exchange = await world.get("/v1/models/gpt-5")
    error = exchange.json()["error"]
    assert (exchange.status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_any_name_is_served_and_the_answer_names_the_model_that_did_it(world: World, path: str) -> None:
    begin = world.complete if path == COMPLETIONS else world.chat
    exchange = await begin(model="gpt-5", max_tokens=1).end()
    assert (exchange.status, exchange.json()["model"]) == (200, "fake-model")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_strictly_an_unknown_name_is_404_and_nothing_is_submitted(path: str, stream: bool) -> None:
    async with open_world(strict_model=True) as world:
        begin = world.complete if path == COMPLETIONS else world.chat
        exchange = await begin(model="gpt-5", stream=stream).end()
        error = exchange.json()["error"]
        assert (exchange.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "fake-model" in error["message"]
        assert await world.requests() == []


@pytest.mark.parametrize("name", ["one", "two", ""])
async def test_strictly_each_of_its_own_names_is_served_and_so_is_none(name: str) -> None:
    async with open_world(strict_model=True, alias="one,two") as world:
        exchange = await world.complete(model=name, max_tokens=1).end()
        assert (exchange.status, exchange.json()["model"]) == (200, "one")
