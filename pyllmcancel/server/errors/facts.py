"""The facts of an error, before an API's shape is given to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


@dataclass(eq=False)
class ErrorFacts:
    """An error as its client has to know it.

    Attributes
    ----------
    type
        OpenAI's word for its kind; other APIs have words of their own, by the status.
    param
        The field at fault.
    code
        For programs: what is wrong, or why the request was cancelled.
    usage
        What had been processed, when the request had begun.
    sizes
        Tokens of a prompt that is too long, and of context.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    usage: Usage | None = None
    sizes: tuple[int, int] | None = None
