"""Parts of an answer in a conversation, as they come: the same for every API that has conversations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning, which it writes for itself before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the text that answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The `index`-th call of a tool; its arguments follow."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A fragment of a call's arguments; all of them together are JSON."""

    index: int
    text: str


Part = Reasoning | Content | CallBegins | Arguments
