"""Reading a model's answer with llama.cpp's parsers: reasoning, content and calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.server.chat.parts import Arguments, CallBegins, Content, Part, Reasoning

if TYPE_CHECKING:
    from pyllmcancel._native import ChatParser

LETTERS = string.ascii_letters + string.digits
ID_LENGTH = 9  # some templates refuse any other length


def read_form(form: bytes) -> ChatParser:
    """Compile the form of answers. With many tools that takes milliseconds, once for all choices of a request.

    Parameters
    ----------
    form
        `ChatForm.parser`.
    """
    made: ChatParser = compiled_module().ChatParser(form)
    return made


class AnswerParser:
    """The parser of one answer. Malformed parts come as text, or as arguments that are not JSON; nothing is an error.

    Parameters
    ----------
    form
        The result of `read_form`, which may be shared.
    """

    def __init__(self, form: ChatParser) -> None:
        self._parser = compiled_module().ChatParser(b"", form)

    @property
    def n_calls(self) -> int:
        """The number of calls that have begun."""
        n_calls: int = self._parser.n_calls
        return n_calls

    def feed(self, text: str) -> Iterator[Part]:
        return parts_of(self._parser.feed(text))

    def finish(self) -> Iterator[Part]:
        """Return the parts that were held back because they could have become something else."""
        return parts_of(self._parser.feed("", True))


def parts_of(found: Iterable[tuple[object, ...]]) -> Iterator[Part]:
    for part in found:
        match part:
            case ("reasoning", str(text)):
                yield Reasoning(text)
            case ("content", str(text)):
                yield Content(text)
            case ("call", int(index), str(name), str(call_id)):
                yield CallBegins(index, name, call_id or new_call_id())
            case ("arguments", int(index), str(text)):
                yield Arguments(index, text)


def new_call_id() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))
