"""The answers of OpenAI's two endpoints, with llama-server's additions: timings, progress, texts, chosen fields."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from pyllmcancel import __version__
from pyllmcancel.events import FinishReason
from pyllmcancel.server.chat.logprobs import Ledger
from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.wire.fields import ABSENT, Answer
from pyllmcancel.server.wire.generation import chosen
from pyllmcancel.server.wire.tokens import text_of
from pyllmcancel.server.wire.usage import PromptProgress, Timings, UsageAnswer, progress, timings, usage_json

if TYPE_CHECKING:
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.openai.completion_body import CompletionBody

# The facts besides the seed that a seed's answers depend on.
FINGERPRINT = f"pyllmcancel-{__version__}"
Finish = Literal["stop", "length"]
FINISH: dict[FinishReason | None, Finish] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Envelope(Answer):
    """The fields that answers and chunks begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    # As in llama-server.
    timings: NotRequired[Annotated[Timings | None, ABSENT]]
    prompt_progress: NotRequired[Annotated[PromptProgress | None, ABSENT]]


class ChunkUsage(Answer):
    usage: NotRequired[Annotated[UsageAnswer | None, ABSENT]]


class ReturnedTokens(Answer):
    tokens: NotRequired[Annotated[list[int] | None, ABSENT]]


class OpenAIDialect(Dialect):
    """One request's answer, of `n_choices` that are generated. `piece` returns the bytes of a token in the text. The
    counts and times of the request's choices are read when they are reported.
    """

    says_done = True
    prefix: ClassVar[str]  # of the answer's id
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(
        self, incoming: Incoming[ChatBody] | Incoming[CompletionBody], n_choices: int, piece: Callable[[int], bytes]
    ) -> None:
        state, body, exchange = incoming.state, incoming.body, incoming.exchange
        self._request = incoming.request
        self._model = state.engine.model
        self._includes_usage = body.stream_options is not None and body.stream_options.include_usage
        self._returns_tokens = body.return_tokens
        self._fields = body.response_fields or ()
        self._verbose = state.config.verbose if body.verbose is None else body.verbose
        self._per_token = bool(body.timings_per_token)
        self._wants_logprobs = body.most_logprobs is not None
        self._ledgers = [Ledger(piece) for _ in range(n_choices)]
        self._texts: list[list[str]] = [[] for _ in range(n_choices)]  # with `verbose` only
        self._envelope: Mapping[str, Any] = {
            "id": f"{self.prefix}{exchange.request_id}",
            "created": int(exchange.created_at),
            "model": state.model_name,
            "system_fingerprint": FINGERPRINT,
        }

    # -- each endpoint's own ------------------------------------------------------------------------------------------

    @abstractmethod
    def _changes(self, delta: Delta) -> Iterable[Mapping[str, Any]]:
        """Return the choices of the chunks of a delta."""

    @abstractmethod
    def _silent(self, index: int) -> Mapping[str, Any]:
        """Return a choice without news, for a chunk with other fields."""

    @abstractmethod
    def _whole_choices(self, deltas: Sequence[list[Delta]]) -> Sequence[Mapping[str, Any]]:
        """Return the choices of the whole answer, made of the deltas of all that were generated."""

    # -- events -------------------------------------------------------------------------------------------------------

    def chunks(self, delta: Delta) -> Iterable[Mapping[str, Any]]:
        choice = self._request.choices[delta.index]
        if delta.prompt_done is not None:
            reported = {"prompt_progress": progress(choice, delta.prompt_done, delta.is_encoding)}
            yield self._chunk([self._silent(delta.index)], **reported, **self._timings(choice, self._per_token))
            return
        ended = delta.finish_reason is not None
        if self._verbose:
            self._texts[delta.index].append(delta.text)
        changes = list(self._changes(delta))
        for change in changes[:-1]:
            yield self._chunk([change], **self._timings(choice, self._per_token))
        for last in changes[-1:]:
            timed = self._timings(choice, self._per_token or (ended and not self._includes_usage))
            yield self._chunk([last], **timed, **(self._details(choice) if ended else {}))

    def closing(self, usage: Usage) -> Iterable[Mapping[str, Any]]:
        if self._includes_usage:
            yield self._chunk([]) | {"usage": usage_json(usage)} | self._timings(self._request.choices[0])

    def _chunk(self, choices: list[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        # As with OpenAI, the usage is null if it was asked for, and else left out.
        usage = {"usage": None} if self._includes_usage else {}
        return {**self._envelope, "object": self.chunk_object, "choices": choices, **usage, **more}

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any]:
        of_choices: list[list[Delta]] = [[] for _ in self._ledgers]
        for delta in deltas:
            of_choices[delta.index].append(delta)
        self._texts[0] = [delta.text for delta in of_choices[0]]
        first = self._request.choices[0]
        whole = {
            **self._envelope,
            "object": self.whole_object,
            "choices": self._whole_choices(of_choices),
            "usage": usage_json(usage),
            **self._timings(first),
            **self._details(first),
        }
        # Clients that ask every endpoint for llama-server's own fields get a whole answer.
        return chosen(whole, self._fields) or whole

    def _returned(self, deltas: Sequence[Delta]) -> ReturnedTokens:
        return {"tokens": [token for delta in deltas for token in delta.tokens]} if self._returns_tokens else {}

    def _timings(self, choice: Choice, wanted: bool = True) -> dict[str, Any]:
        if not wanted:
            return {}
        done = min(choice.n_committed, len(choice.prompt))
        return {"timings": timings(choice, done, len(choice.generated))}

    def _details(self, choice: Choice) -> dict[str, Any]:
        if not self._verbose:
            return {}
        text = "".join(self._texts[choice.index])
        return {"__verbose": {"prompt": text_of(self._model, choice.prompt), "content": text}}
