"""The official ``openai`` client against a real process that serves a model which pools."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.engine import Engine
from tests.support.http_process import ServerProcess, fresh_id
from tests.support.threads import N_THREADS
from tests.support.tiny_embedders import write_tiny_encoder

TEXTS = ["the cat sat on the mat", "and was happy", "to see the sun"]
MANY = [f"{text} {number}" * 8 for number in range(200) for text in TEXTS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for hundreds of texts to take seconds."""
    path = tmp_path_factory.mktemp("models") / "encoder.gguf"
    return write_tiny_encoder(path, n_layer=6, n_embd=256, n_ff=1024)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    with ServerProcess("--model", str(model), "--parallel", "2") as process:
        yield process.started()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made
    server.wait_idle()


@pytest.fixture(scope="module")
def expected(model: Path) -> np.ndarray:
    engine = Engine.load(EngineConfig(model=model, threads=N_THREADS))
    with engine:
        return engine.embed(TEXTS)


def vectors(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([entry.embedding for entry in answer.data])


def test_embeddings_by_default_and_as_floats(client: openai.OpenAI, expected: np.ndarray) -> None:
    """By default this client asks for base64, and decodes it."""
    answer = client.embeddings.create(model="any", input=TEXTS)
    assert (answer.object, answer.model) == ("list", "encoder")
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3
    np.testing.assert_allclose(vectors(answer), expected, atol=1e-6)
    floats = client.embeddings.create(model="any", input=TEXTS, encoding_format="float")
    np.testing.assert_allclose(vectors(floats), expected, atol=1e-6)


def test_one_text_and_tokens(client: openai.OpenAI, expected: np.ndarray) -> None:
    one = client.embeddings.create(model="any", input=TEXTS[0])
    np.testing.assert_allclose(vectors(one), expected[:1], atol=2e-3)
    tokens = client.embeddings.create(model="any", input=[[2, 45, 3], [2, 50, 3]])
    assert len(tokens.data) == 2
    assert tokens.usage.prompt_tokens == 6


@pytest.mark.anyio
async def test_a_cancelled_task_is_cancelled_and_no_neighbour_is(server: ServerProcess, expected: np.ndarray) -> None:
    mine = fresh_id()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        options: dict[str, Any] = {"model": "any", "extra_headers": {"X-Request-Id": mine}}
        task = asyncio.create_task(client.embeddings.create(input=MANY, **options))
        await asyncio.to_thread(server.wait_for, mine, prompt_tokens_done=lambda n: n > 0)
        neighbour = asyncio.create_task(client.embeddings.create(model="any", input=TEXTS))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = await asyncio.to_thread(server.wait_for, mine, status="cancelled")
        assert found["cancel_reason"] == "disconnect"
        np.testing.assert_allclose(vectors(await neighbour), expected, atol=2e-3)
