"""Parts of an answer in a conversation, in the order in which they come. All APIs with conversations share them."""

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
    """The beginning of the `index`-th call of a tool; its arguments follow."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A fragment of a call's arguments, which together are JSON."""

    index: int
    text: str


Part = Reasoning | Content | CallBegins | Arguments
