"""How OpenAI's two endpoints word an answer: what they have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyllmcancel import __version__
from pyllmcancel.server.error_responses import usage_json
from pyllmcancel.server.openai.logprobs import Ledger

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.request import Delta, Usage

# What a seed's answers depend on, besides the seed.
FINGERPRINT = f"pyllmcancel-{__version__}"


@dataclass(frozen=True, slots=True)
class Sender:
    """Who answers what: for the fields that every answer begins with."""

    request_id: str
    model_name: str
    model: Model


class OpenAIDialect:
    """One request's answer.

    Parameters
    ----------
    n_choices
        How many are generated, for all prompts together.
    piece
        The bytes of a token in the text.
    """

    says_done = True
    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(
        self,
        sender: Sender,
        n_choices: int,
        piece: Callable[[int], bytes],
        *,
        include_usage: bool,
    ) -> None:
        self._model = sender.model
        self._include_usage = include_usage
        self._envelope = {
            "id": f"{self.prefix}{sender.request_id}",
            "created": int(time.time()),
            "model": sender.model_name,
            "system_fingerprint": FINGERPRINT,
        }
        self._ledgers = [Ledger(piece) for _ in range(n_choices)]

    def opening(self) -> Iterable[dict[str, Any]]:
        return ()

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        raise NotImplementedError

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        if self._include_usage:
            yield self._chunk() | {"usage": usage_json(usage)}

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        by_choice: list[list[Delta]] = [[] for _ in self._ledgers]
        for delta in deltas:
            by_choice[delta.index].append(delta)
        choices = self._whole_choices(by_choice)
        return self._envelope | {"object": self.whole_object, "choices": choices, "usage": usage_json(usage)}

    def _whole_choices(self, by_choice: list[list[Delta]]) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        chunk = self._envelope | {"object": self.chunk_object, "choices": list(choices)}
        # OpenAI: with include_usage every chunk has the field, null in all but the last.
        return chunk | {"usage": None} if self._include_usage else chunk
