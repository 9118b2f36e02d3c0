"""The facts of an error, before an API's shape is given to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


@dataclass(eq=False)
class ErrorFacts:
    """The facts of an error that its client needs."""

    status: int
    message: str
    type: str = "invalid_request_error"  # OpenAI's word for the kind; other APIs have others, by the status
    param: str | None = None  # the field at fault
    code: str | None = None  # for programs: the kind of mistake, or the reason of the cancel
    usage: Usage | None = None  # the tokens processed so far, if the request had begun
    detail: str | None = None  # the deadline that has passed, if that is the reason of the cancel
    sizes: tuple[int, int] | None = None  # the tokens of a prompt that is too long, and of the context
