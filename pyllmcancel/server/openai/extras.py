"""llama-server's additions to OpenAI's answers: timings, the progress of the prompt, its text, a choice of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.generate import generate
from pyllmcancel.server.wire.chosen import chosen
from pyllmcancel.server.wire.timings import progress, timings
from pyllmcancel.server.wire.tokens import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel._native import Model
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.requests.request import Choice, Request
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.generate import EngineResponse
    from pyllmcancel.server.streams.reading import KeptResponse
    from pyllmcancel.server.wire.generation import OpenAIBody


class OpenAIChunks(Protocol):
    """The answers of one of OpenAI's two endpoints."""

    def opening(self) -> Iterable[Mapping[str, Any]]: ...
    def chunks(self, delta: Delta) -> Iterable[Mapping[str, Any]]: ...
    def closing(self, usage: Usage) -> Iterable[Mapping[str, Any]]: ...
    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any]: ...

    def silent(self, index: int) -> Mapping[str, Any]:
        """Return a chunk without news of a choice, to which other fields are added."""


async def generate_with_extras(
    incoming: Incoming[OpenAIBody],
    prompts: Sequence[Sequence[int]],
    params: GenerationParams,
    dialect: OpenAIChunks,
) -> EngineResponse | KeptResponse:
    """As `generate`, in an OpenAI dialect with llama-server's additions."""
    state, body = incoming.state, incoming.body
    verbose = state.config.verbose if body.verbose is None else body.verbose
    told = WithExtras(dialect, body, state.engine.model, verbose=verbose)
    response = await generate(incoming, prompts, params, told, ping_interval=body.ping_interval)
    # Set before the first delta: the engine's thread posts deltas, which this event loop reads later.
    told.follow(response.request)
    return response


class WithExtras(Dialect):
    """One request's answer, with llama-server's additions."""

    says_done = True

    def __init__(self, dialect: OpenAIChunks, body: OpenAIBody, model: Model, *, verbose: bool) -> None:
        self._dialect = dialect
        self._model = model
        self._verbose = verbose
        self._texts: dict[int, list[str]] = {}  # texts of choices; with `verbose` only
        self._per_token = bool(body.timings_per_token)
        self._usage_comes_last = body.includes_usage
        self._fields = body.response_fields
        self._choices: list[Choice] = []

    def follow(self, request: Request) -> None:
        """Answer for this request, whose counts and times are read from here on."""
        self._choices = request.choices

    def opening(self) -> Iterable[Mapping[str, Any]]:
        return self._dialect.opening()

    def chunks(self, delta: Delta) -> Iterable[Mapping[str, Any]]:
        choice = self._choices[delta.index]
        if delta.prompt_done is not None:
            told = progress(choice, delta.prompt_done, delta.is_encoding)
            yield self._timed({**self._dialect.silent(delta.index), "prompt_progress": told}, choice, self._per_token)
            return
        ended = delta.finish_reason is not None
        if self._verbose:
            self._texts.setdefault(delta.index, []).append(delta.text)
        chunks = list(self._dialect.chunks(delta))
        for chunk in chunks[:-1]:
            yield self._timed(chunk, choice, self._per_token)
        for last in chunks[-1:]:
            timed = self._timed(last, choice, self._per_token or (ended and not self._usage_comes_last))
            yield self._with_verbose(timed, choice) if ended else timed

    def closing(self, usage: Usage) -> Iterable[Mapping[str, Any]]:
        for chunk in self._dialect.closing(usage):
            yield self._timed(chunk, self._choices[0], wanted=True)

    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any]:
        whole = self._timed(self._dialect.whole(deltas, usage), self._choices[0], wanted=True)
        if self._verbose:
            self._texts[0] = [delta.text for delta in deltas if delta.index == 0]
            whole = self._with_verbose(whole, self._choices[0])
        # Clients that ask every endpoint for llama-server's own fields get a whole answer.
        return chosen(whole, self._fields or ()) or whole

    def _with_verbose(self, chunk: Mapping[str, Any], choice: Choice) -> Mapping[str, Any]:
        if not self._verbose:
            return chunk
        text = "".join(self._texts[choice.index])
        return {**chunk, "__verbose": {"prompt": text_of(self._model, choice.prompt), "content": text}}

    def _timed(self, chunk: Mapping[str, Any], choice: Choice, wanted: bool) -> Mapping[str, Any]:
        if not wanted:
            return chunk
        done = min(choice.n_committed, len(choice.prompt))
        return {**chunk, "timings": timings(choice, done, len(choice.generated))}
