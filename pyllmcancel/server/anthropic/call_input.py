"""The input of a tool's call, made of the model's text. It is always the JSON of an object, whatever the model
writes.
"""

from __future__ import annotations

import json
import re

from pydantic_core import from_json

SPECIAL = re.compile(r'["\\{}\[\],]')
# The member in which Anthropic's clients have to send such an input back.
INVALID = "INVALID_JSON"


class CallInput:
    """The input of one call. It takes fragments and returns whole members of the object, so that no member is ever cut
    off.

    Text that is not JSON is not returned; instead the whole text, as it was written, becomes the member `INVALID_JSON`.

    Parameters
    ----------
    eager
        Return each fragment unchanged, as the client asked for.
    """

    def __init__(self, *, eager: bool = False) -> None:
        self._eager = eager
        self._written: list[str] = []
        self._member: list[str] = []  # pieces of the member that has begun
        self._handed_out = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._ended = False  # True after the object's last brace
        self._spoiled = False

    def feed(self, text: str) -> str:
        """Return the text that can be sent after this fragment."""
        self._written.append(text)
        if self._eager:
            return text
        return "" if self._spoiled else "".join(map(self._handed, self._members(text)))

    def finish(self) -> str:
        """Return the text that completes the object. All its members are whole, even if the answer broke off."""
        if self._eager:
            return ""
        found = ""
        if self._spoiled:
            found = self._handed(f'"{INVALID}": {json.dumps("".join(self._written))}')
        return f"{found}}}" if self._handed_out else "{}"

    def _handed(self, member: str) -> str:
        before = "," if self._handed_out else "{"
        self._handed_out = True
        return before + member

    def _members(self, text: str) -> list[str]:
        """Return members of the object that end in this fragment; sets `_spoiled` if the text cannot be an object."""
        found: list[str] = []
        begin = 0
        if self._depth == 0:
            begin = len(text) - len(text.lstrip())
            if begin == len(text):
                return found
            if self._ended or text[begin] != "{":
                self._spoiled = True
                return found
            begin, self._depth = begin + 1, 1
        at = begin
        while special := self._next(text, at):
            at = special.end()
            if not self._ends_member(special[0]):
                continue
            self._member.append(text[begin : at - 1])
            begin = at
            if not self._take_member(found):
                return found
            if self._depth == 0:
                self._ended = True
                self._spoiled = special[0] != "}" or bool(text[at:].strip())
                return found
        self._member.append(text[begin:])
        return found

    def _next(self, text: str, at: int) -> re.Match[str] | None:
        """Return the next significant character; a character after a backslash is not one."""
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        return SPECIAL.search(text, at)

    def _ends_member(self, character: str) -> bool:
        if self._in_string:
            self._in_string = character != '"'
            self._escaped = character == "\\"
            return False
        match character:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                return self._depth == 0
            case ",":
                return self._depth == 1
        return False

    def _take_member(self, found: list[str]) -> bool:
        member, self._member = "".join(self._member), []
        if self._depth == 0 and not member.strip() and not found and not self._handed_out:
            return True  # an object without members
        try:
            from_json(f"{{{member}}}" if member.strip() else "")
        except ValueError:
            self._spoiled = True
            return False
        found.append(member)
        return True
