"""LoRA adapters over HTTP: `lora` of every dialect's bodies, and ``/lora-adapters``."""

import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.adapters import Adapter
from pyllmcancel.server.config import ApiKey
from tests.support import fake_native
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

ADAPTERS = [Adapter(), Adapter("verses", "Thou "), Adapter(invocation_tokens=tuple(b"<go>"))]
FILES = (Path("first.gguf"), Path("second.gguf"), Path("third.gguf"))
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 5},
    CHAT: HELLO | {"max_tokens": 5},
    "/v1/responses": {"input": "hello", "max_output_tokens": 5},
    "/v1/messages": HELLO | {"max_tokens": 5},
    "/completion": {"prompt": "hello", "n_predict": 5},
    "/infill": {"input_prefix": "hello", "input_suffix": "world", "n_predict": 5},
}
FIRST = [{"id": 0, "scale": 1.0}]
BOTH = [*FIRST, {"id": 1, "scale": 0.25}]


class InfillModel(fake_native.Model):
    special_tokens = {"eos": 256, "fim_pre": 1, "fim_suf": 2, "fim_mid": 3}  # noqa: RUF012 - a constant


def world_with_adapters(*scales: float, **options: Any) -> AbstractAsyncContextManager[World]:
    model = InfillModel()
    model.adapters = ADAPTERS
    return open_world(model=model, lora=tuple(zip(FILES, scales or (0.0, 0.0, 0.0), strict=True)), **options)


async def texts(world: World, **fields: Any) -> str:
    return (await world.complete("hello", max_tokens=5, temperature=0, **fields).end()).json()["choices"][0]["text"]


@pytest.mark.parametrize("path", BODIES)
async def test_every_dialect_takes_adapters(path: str) -> None:
    async with world_with_adapters(0.0, 0.5, 0.0) as world:
        await world.served(path, BODIES[path] | {"lora": FIRST}, headers={"x-request-id": "r"})
        assert (await world.request("r"))["lora"] == FIRST
        await world.served(path, BODIES[path], headers={"x-request-id": "s"})
        assert (await world.request("s"))["lora"] == [{"id": 1, "scale": 0.5}]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("lora", [[{"id": 3, "scale": 1.0}], [{"id": 0, "scale": 1e30}]], ids=str)
async def test_an_adapter_that_is_not_there_is_refused_by_name(path: str, lora: list[dict[str, float]]) -> None:
    async with world_with_adapters() as world:
        for stream in (False, True):
            exchange = await world.post(path, BODIES[path] | {"lora": lora, "stream": stream})
            assert exchange.status == 400, exchange.body
            if path != "/v1/messages":  # whose errors have no field for that
                assert exchange.json()["error"]["param"] == "lora"
        assert await world.requests() == []


@pytest.mark.parametrize(
    "lora", [{"id": 0}, [{"scale": 1.0}], [{"id": -1}], [{"id": 0, "scale": "much"}], ["first"]], ids=str
)
async def test_what_is_no_list_of_scales_is_refused(lora: Any) -> None:
    async with world_with_adapters() as world:
        exchange = await world.post(COMPLETIONS, BODIES[COMPLETIONS] | {"lora": lora})
        assert exchange.status == 400
        assert exchange.json()["error"]["param"].startswith("lora")
        assert (await world.post("/lora-adapters", lora)).status == 400


async def test_the_adapters_are_listed_and_may_wait_to_be_applied() -> None:
    async with world_with_adapters(1.0, 0.5, 0.0) as world:
        first, second, third = (await world.get("/lora-adapters")).json()
        assert first == {"id": 0, "path": "first.gguf", "scale": 1.0, "task_name": "", "prompt_prefix": ""}
        named = {"task_name": "verses", "prompt_prefix": "Thou "}
        assert second == {"id": 1, "path": "second.gguf", "scale": 0.5} | named
        invoked = {"alora_invocation_string": "<go>", "alora_invocation_tokens": list(b"<go>")}
        assert third == first | {"id": 2, "path": "third.gguf", "scale": 0.0} | invoked
    async with world_with_adapters(1.0, 0.5, 0.0, lora_init_without_apply=True) as world:
        assert [adapter["scale"] for adapter in (await world.get("/lora-adapters")).json()] == [0.0, 0.0, 0.0]


async def test_scales_that_are_set_are_those_of_later_requests() -> None:
    async with world_with_adapters() as world:
        plain = await texts(world)
        adapted = await texts(world, lora=FIRST)
        assert plain != adapted
        running = await world.running_stream("r")
        assert (await world.post("/lora-adapters", FIRST)).json() == {"success": True}
        world.gate.open()
        assert (await running.end()).status == 200
        assert (await world.request("r"))["lora"] == []
        assert await texts(world) == adapted
        assert await texts(world, lora=[]) == adapted, "an empty list asks for nothing, as in llama-server"
        assert await texts(world, lora=[{"id": 0, "scale": 0.0}]) == plain
        assert (await world.post("/lora-adapters", [{"id": 1}])).json() == {"success": True}
        assert await texts(world) == plain, "adapters that are not named have the scale 0"


async def test_an_adapter_that_is_not_there_cannot_be_set() -> None:
    async with world_with_adapters(1.0, 0.0, 0.0) as world:
        refused = await world.post("/lora-adapters", [{"id": 1, "scale": 1.0}, {"id": 3, "scale": 1.0}])
        assert refused.refusal == (400, "lora")
        assert [adapter["scale"] for adapter in (await world.get("/lora-adapters")).json()] == [1.0, 0.0, 0.0]


async def test_among_several_owners_an_administrator_sets_the_scales() -> None:
    keys = (ApiKey("a", "key-a"), ApiKey("b", "key-b"))
    async with world_with_adapters(api_keys=keys, admin_api_keys=("key-admin",)) as world:
        for key, status in (("key-a", 403), ("key-admin", 200)):
            assert (await world.post("/lora-adapters", FIRST, headers={"x-api-key": key})).status == status
        assert (await world.get("/lora-adapters", headers={"x-api-key": "key-a"})).json()[0]["scale"] == 1.0


async def test_the_log_says_which_adapters_computed_a_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pyllmcancel"):
        async with world_with_adapters() as world:
            await texts(world, lora=BOTH)
            await texts(world)
    with_adapters, without = [record for record in caplog.records if " finished " in record.getMessage()]
    assert "lora 0:1 1:0.25," in with_adapters.getMessage()
    assert with_adapters.__dict__["lora"] == BOTH
    assert "lora" not in without.getMessage()
