"""How the OpenAI endpoints word an answer: completions and chat completions, whole and in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyllmcancel.server.error_responses import usage_json

if TYPE_CHECKING:
    from pyllmcancel.request import Delta, TokenLogprobs, Usage

Piece = Callable[[int], bytes]


class OpenAIDialect:
    """What completions and chat have in common."""

    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(self, request_id: str, model: str, n_choices: int, piece: Piece, *, include_usage: bool) -> None:
        self._n_choices = n_choices
        self._piece = piece
        self._include_usage = include_usage
        self._envelope = {"id": f"{self.prefix}{request_id}", "created": int(time.time()), "model": model}

    def opening(self) -> Iterable[dict[str, Any]]:
        return ()

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        # Nothing to say: text is held back, or the token has none.
        if delta.text or delta.finish_reason is not None or delta.logprobs:
            yield self._chunk([self._choice_chunk(delta)])

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        if self._include_usage:
            yield self._chunk([]) | {"usage": usage_json(usage)}

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        by_choice: list[list[Delta]] = [[] for _ in range(self._n_choices)]
        for delta in deltas:
            by_choice[delta.index].append(delta)
        choices = [self._whole_choice(index, own) for index, own in enumerate(by_choice)]
        return self._envelope | {"object": self.whole_object, "choices": choices, "usage": usage_json(usage)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = self._envelope | {"object": self.chunk_object, "choices": choices}
        # OpenAI: with include_usage every chunk has the field, null in all but the last.
        return chunk | {"usage": None} if self._include_usage else chunk

    def _choice_chunk(self, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError

    def _whole_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        raise NotImplementedError

    def _token_text(self, token: int) -> str:
        return self._piece(token).decode("utf-8", "replace")


class CompletionDialect(OpenAIDialect):
    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, request_id: str, model: str, n_choices: int, piece: Piece, *, include_usage: bool) -> None:
        super().__init__(request_id, model, n_choices, piece, include_usage=include_usage)
        self._offsets = [0] * n_choices  # characters reported in logprobs so far, per choice

    def _choice_chunk(self, delta: Delta) -> dict[str, Any]:
        logprobs = self._logprobs(delta.index, delta.logprobs)
        return {"index": delta.index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason}

    def _whole_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        logprobs = self._logprobs(index, tuple(entry for delta in deltas for entry in delta.logprobs))
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": deltas[-1].finish_reason}

    def _logprobs(self, index: int, entries: tuple[TokenLogprobs, ...]) -> dict[str, Any] | None:
        if not entries:
            return None
        tokens = [self._token_text(entry.token) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        alternatives = {self._token_text(token): logprob for token, logprob in reversed(entry.top.tolist())}
        return alternatives | {self._token_text(entry.token): entry.logprob}


class ChatDialect(OpenAIDialect):
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Iterable[dict[str, Any]]:
        for index in range(self._n_choices):
            delta = {"role": "assistant", "content": ""}
            yield self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _choice_chunk(self, delta: Delta) -> dict[str, Any]:
        return {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }

    def _whole_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(tuple(entry for delta in deltas for entry in delta.logprobs)),
            "finish_reason": deltas[-1].finish_reason,
        }

    def _logprobs(self, entries: tuple[TokenLogprobs, ...]) -> dict[str, Any] | None:
        if not entries:
            return None
        content = [
            self._token(entry.token, entry.logprob)
            | {"top_logprobs": [self._token(token, logprob) for token, logprob in entry.top.tolist()]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}
