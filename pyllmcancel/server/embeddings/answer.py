"""Answers with the embeddings of texts."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, cast

import numpy as np
from fastapi.responses import Response
from pydantic import Field

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.embeddings.request import Embedded
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.requests.token_stream import AsyncStream, LoopSink
from pyllmcancel.server.answer_events import WholeResponse
from pyllmcancel.server.preparing import working
from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.embeddings.body import EmbeddingBody, LlamaEmbeddingBody
    from pyllmcancel.server.wire.tokens import TextReader


class EmbeddingEntry(Answer):
    object: Literal["embedding"]
    index: Annotated[int, Field(ge=0, description="Index of the text in `input`.")]
    embedding: Annotated[
        list[float] | str, Field(description="Vector of length 1 (L2); a string for `encoding_format` base64.")
    ]


class EmbeddingUsage(Answer):
    prompt_tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]


class EmbeddingAnswer(Answer):
    """The embeddings, in the order of `input`."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage


class LlamaEmbeddingEntry(Answer):
    index: Annotated[int, Field(ge=0, description="Index of the text in `input`.")]
    embedding: Annotated[
        list[list[float]], Field(description="The text's vector, of length 1 (L2); or those of its tokens as they are.")
    ]


class Wording(Protocol):
    """The answer as JSON, written piece by piece."""

    def entry(self, index: int, embedding: NDArray[np.float32]) -> str:
        """Write the result of one text. Called in threads."""

    def whole(self, entries: Sequence[str], usage: Usage) -> str:
        """Write the answer from all entries, which are in the order of the texts."""


class OpenAIWording:
    """OpenAI's: an EmbeddingAnswer."""

    def __init__(self, model_name: str, dimensions: int | None, *, base64: bool) -> None:
        self._model_name = model_name
        self._dimensions = dimensions
        self._base64 = base64

    def entry(self, index: int, embedding: NDArray[np.float32]) -> str:
        """Write an EmbeddingEntry. NumPy writes its thousands of numbers."""
        numbers = cut(embedding, self._dimensions)
        # Base64 is of little-endian 32-bit floats.
        encoded = b64encode(np.ascontiguousarray(numbers, "<f4").data).decode("ascii") if self._base64 else None
        shown = json_numbers(numbers) if encoded is None else f'"{encoded}"'
        return f'{{"object":"embedding","index":{index},"embedding":{shown}}}'

    def whole(self, entries: Sequence[str], usage: Usage) -> str:
        tokens: EmbeddingUsage = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        ends = f'"model":{json.dumps(self._model_name)},"usage":{json.dumps(tokens)}'
        return f'{{"object":"list","data":[{",".join(entries)}],{ends}}}'


class LlamaWording:
    """llama-server's: a list of LlamaEmbeddingEntry."""

    def entry(self, index: int, embedding: NDArray[np.float32]) -> str:
        rows = embedding.reshape(-1, embedding.shape[-1])
        return f'{{"index":{index},"embedding":[{",".join(map(json_numbers, rows))}]}}'

    def whole(self, entries: Sequence[str], _usage: Usage) -> str:
        return f"[{','.join(entries)}]"


async def embed(incoming: Incoming[EmbeddingBody] | Incoming[LlamaEmbeddingBody], wording: Wording) -> WholeResponse:
    """Tokenize, submit, and answer in one piece. The engine's errors pass through to the handlers."""
    work = partial(text_tokens, incoming.state.texts, incoming.body.texts)
    return submit_texts(incoming, await incoming.prepare(work), wording)


def submit_texts(incoming: Incoming[Any], tokens: Sequence[Sequence[int]], wording: Wording) -> WholeResponse:
    """Submit a request, and answer in one piece."""
    engine, request, sink = incoming.state.engine, incoming.request, LoopSink(asyncio.get_running_loop())
    with working(engine, request):
        engine.fill_texts(request, tokens, sink, incoming.body.timeout, incoming.body.queue_timeout)
    (incoming.exchange.link or engine).accept(request)
    stream = AsyncStream(request, engine, sink, CancelReason.DISCONNECT)
    return WholeResponse(stream, partial(texts_answer, wording))


def text_tokens(reader: TextReader, texts: Sequence[str | Sequence[int | str]], pause: Pause) -> list[Sequence[int]]:
    """Return the tokens of texts. Special tokens in a text are recognised, as embedding models expect."""
    found: list[Sequence[int]] = []
    for text in texts:
        found.append(reader.mixed(text, "input", pause, add_special=True, parse_special=True))
        if not found[-1]:
            raise InvalidRequestError("a text is empty", "input")
    return found


async def texts_answer(wording: Wording, stream: AsyncStream) -> Response:
    """Return the answer in one piece. A step's results are written as JSON while the next step computes."""
    entries: dict[int, str] = {}

    def write(batch: list[Delta]) -> None:
        for delta in batch:
            text = cast("Embedded", delta)
            entries[text.index] = wording.entry(text.index, text.embedding)

    async for batch in stream.batches():
        # In a thread: thousands of numbers would delay the events of other requests.
        await asyncio.to_thread(write, batch)
    assert stream.ending is not None
    in_order = [entries[index] for index in sorted(entries)]
    return Response(wording.whole(in_order, stream.ending.usage), media_type="application/json")


def json_numbers(embedding: NDArray[np.float32]) -> str:
    """Return a JSON array of the shortest numbers that have the same value in 32 bits."""
    return f"[{','.join(embedding.astype(np.str_).tolist())}]"


def cut(embedding: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """Return the first `dimensions` numbers, scaled to length 1 again."""
    if dimensions is None or dimensions == len(embedding):
        return embedding
    kept = embedding[:dimensions]
    length = np.linalg.norm(kept)
    return kept / length if length > 0.0 else kept
