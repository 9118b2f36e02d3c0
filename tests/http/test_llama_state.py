"""llama-server's endpoints about texts, tokens and the server itself."""

from typing import Any

import pytest

from pyllmcancel.sampling import SamplingParams
from tests.support import fake_native
from tests.support.http_world import World, accepted, open_world


class Beginning(fake_native.Model):
    """Begins every text with token 6, and reads ``<x>`` as token 7 where special tokens are."""

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        tokens = super().tokenize(text)
        found = list(bytes(tokens).replace(b"<x>", b"\x07")) if parse_special else tokens
        return [6, *found] if add_special else found


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "ab"}, [97, 98]),
        ({"content": "ab", "add_special": True}, [6, 97, 98]),
        ({"content": "a<x>"}, [97, 7]),
        ({"content": "<x>", "parse_special": False}, list(b"<x>")),
        ({"content": ["a", 7, "b"], "add_special": True}, [6, 97, 7, 98]),
        ({"content": [7, "b"], "add_special": True}, [7, 98]),
        ({"content": ""}, []),
        ({}, []),
        (
            {"content": "hé", "with_pieces": True},
            [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}],
        ),
    ],
)
async def test_tokenize(fields: dict[str, Any], tokens: list[Any]) -> None:
    async with open_world(model=Beginning()) as world:
        exchange = await world.post("/tokenize", fields)
        assert (exchange.status, exchange.json()) == (200, {"tokens": tokens})


@pytest.mark.parametrize("content", ["short", "long " * 900])
async def test_detokenize_is_the_way_back(world: World, content: str) -> None:
    tokens = (await world.post("/tokenize", {"content": content})).json()["tokens"]
    for given, text in (({"tokens": tokens}, content), ({"tokens": [104, 256, 195]}, "h<eos>\ufffd"), ({}, "")):
        assert (await world.post("/detokenize", given)).json() == {"content": text}


async def test_a_template_is_applied_and_nothing_computed(world: World) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    exchange = await world.post("/apply-template", {"messages": messages})
    expected = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    assert (exchange.status, exchange.json()) == (200, {"prompt": expected})
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        counted = (await world.post(path, {"messages": messages})).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": len(expected)}
    assert await world.requests() == []


async def test_props_tell_what_is_served() -> None:
    async with open_world(n_ctx=512, parallel=2) as world:
        props = (await world.get("/props")).json()
        assert (props["total_slots"], props["model_alias"], props["is_sleeping"]) == (2, "fake-model", False)
        assert props["model_path"].endswith(".gguf")
        assert "<|im_start|>" in props["chat_template"]
        assert (props["bos_token"], props["eos_token"]) == ("", "<eos>")
        assert not any(props["modalities"].values())
        defaults = props["default_generation_settings"]
        assert (defaults["n_ctx"], defaults["params"]["temperature"], defaults["params"]["seed"]) == (512, 0.8, -1)


async def test_requests_that_say_nothing_are_sampled_as_the_models_file_advises() -> None:
    model = fake_native.Model()
    model.metadata |= {"general.sampling.temp": "0.2", "general.sampling.top_k": "20", "general.sampling.top_p": "0.9"}
    model.metadata |= {"general.sampling.mirostat": "2"}
    given = {"sampling": SamplingParams(top_k=40), "sampling_given": frozenset({"top_k"})}
    async with open_world(model=model, **given) as world:
        params = (await world.get("/props")).json()["default_generation_settings"]["params"]
        assert (params["temperature"], params["top_k"], params["top_p"]) == (0.2, 40, 0.9)
        requests = accepted(world)
        await world.complete(max_tokens=1).end()
        await world.chat(max_tokens=1, temperature=0.7).end()
        await world.post("/completion", {"prompt": "x", "n_predict": 1, "top_p": 0.5})
        await world.complete(max_tokens=1, temperature=0).end()
        sampled = [request.params.sampling for request in requests]
        found = [(one.temperature, one.top_k, one.top_p) for one in sampled]
        assert found == [(0.2, 40, 0.9), (0.7, 40, 0.9), (0.2, 40, 0.5), (0.0, 40, 0.9)]
        assert [(one.mirostat, one.is_greedy) for one in sampled] == [(2, False)] * 3 + [(2, True)]


async def test_a_busy_slot_tells_of_its_request_while_a_step_runs() -> None:
    async with open_world(parallel=2) as world:
        free = {"n_ctx": 1024, "speculative": True, "is_processing": False}
        assert (await world.get("/slots")).json() == [{"id": 0} | free, {"id": 1} | free]
        await world.running_stream("mine", prompt="hello", max_tokens=8)
        await world.step(3)
        await world.held()
        busy, idle = (await world.get("/slots")).json()
        assert (busy["is_processing"], busy["request_id"], idle["is_processing"]) == (True, "mine", False)
        assert (busy["n_prompt_tokens"], busy["n_prompt_tokens_processed"], busy["n_prompt_tokens_cache"]) == (5, 5, 0)
        (following,) = busy["next_token"]
        assert (following["n_decoded"], following["n_remain"], following["has_next_token"]) == (3, 5, True)
        assert busy["params"]["n_predict"] == 8
        assert "hello" not in str(busy), "prompts are not shown"


async def test_a_client_can_ask_whether_a_slot_is_free() -> None:
    async with open_world(parallel=1) as world:
        assert (await world.get("/slots?fail_on_no_slot=1")).status == 200
        await world.running_stream("mine")
        exchange = await world.get("/slots?fail_on_no_slot=1")
        assert (exchange.status, exchange.json()["error"]["type"]) == (503, "unavailable_error")
        assert (await world.get("/slots")).status == 200


async def test_what_cannot_be_changed_is_said_to_be_unsupported(world: World) -> None:
    for path in ("/props", *(f"/slots/0?action={action}" for action in ("erase", "save", "restore"))):
        exchange = await world.post(path, {"filename": "x"})
        assert (exchange.status, exchange.json()["error"]["type"]) == (501, "not_supported_error")
    assert (await world.get("/lora-adapters")).json() == []
