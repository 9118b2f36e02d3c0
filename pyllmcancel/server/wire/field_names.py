"""Fields of a chat by the names that the API of its request has for them, in errors and reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.errors.responses import ApiError

CHAT_TOOL = re.compile(r"tools\[(\d+)\]\.function")
FIELD = re.compile(r"^\w+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of one request's fields."""

    names: Mapping[str, str] = field(default_factory=dict)  # the API's names, by the chat's, where the two differ
    tools: Sequence[str] | None = None  # the path of each of the chat's tools; None if the paths are the chat's
    schema: str = "parameters"  # the API's name for these, of a tool

    def path(self, path: str) -> str:
        """Return the path, within the request, of a field of the chat."""
        if self.tools is not None and (tool := CHAT_TOOL.match(path)) is not None:
            return self.tools[int(tool[1])] + path[tool.end() :].replace(".parameters", f".{self.schema}", 1)
        return FIELD.sub(lambda found: self.names.get(found[0], found[0]), path)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Make errors inside the block name the fields that the client has sent."""
        try:
            yield
        except (InvalidRequestError, ApiError) as error:
            if error.param:
                error.param = self.path(error.param)
            raise


UNCHANGED = FieldNames()
