"""The facts of an error, before an API's shape is given to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


@dataclass(eq=False)
class ErrorFacts:
    """The facts of an error that its client needs.

    Attributes
    ----------
    type
        OpenAI's word for the kind of error; other APIs have words of their own, by the status.
    param
        The field at fault.
    code
        For programs: the kind of mistake, or the reason of the cancel.
    usage
        The tokens processed so far, if the request had begun.
    detail
        The deadline that has passed, if that is the reason of the cancel.
    sizes
        The number of tokens of a prompt that is too long, and of the context.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    usage: Usage | None = None
    detail: str | None = None
    sizes: tuple[int, int] | None = None
