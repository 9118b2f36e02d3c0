"""Reading rows of the store. A damaged row in the file costs its own response only.

SQLite's texts come as bytes, and are decoded here: sqlite3 would put a text that it cannot decode into its error.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard, get_args

from pyllmcancel.server.responses.answer import Status
from pyllmcancel.server.responses.storage.database import damaged, not_found, too_long

MAX_CONVERSATION_BYTES = 16 << 20  # bytes of all responses of one conversation; no model's context holds this much
NOTED_SECONDS = 600.0  # a use that follows another one so soon is not recorded
LOST = "lost"  # the status of a response that was running when its server ended
ENDED_WITH_SERVER = {"code": "server_error", "message": "the server ended before the response did"}
# Checked without the GIL: a response may be long, and its client gets it unchanged.
IS_RESPONSE = """CASE WHEN typeof(response) <> 'text' THEN 0
    WHEN json_valid(response) THEN json_type(response) = 'object' ELSE 0 END"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored response."""

    response: str  # JSON, in the form that its client gets
    background: bool
    status: str
    log: bytes | None  # the packed events; None for one that was not in the background, or ended with its server


@dataclass(frozen=True, slots=True)
class Part:
    """A conversation, up to one of its responses."""

    items: list[dict[str, Any]]
    missing: str | None  # the response that the part continues, and that is not here
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of a conversation, with its input."""

    response_id: str
    asked: Any
    answered: Any
    previous: str | None

    @property
    def n_bytes(self) -> int:
        return len(self.asked) + len(self.answered)

    def items(self, *, output: bool) -> list[dict[str, Any]]:
        with checked(self.response_id):
            found = json.loads(text_of(self.asked))
            if output:
                found = found + json.loads(text_of(self.answered))["output"]
            if not are_items(found):
                raise ValueError
        return found


def stored_response(connection: sqlite3.Connection, owner: str, response_id: str) -> Stored | None:
    asked = f"SELECT response, background, status, log, {IS_RESPONSE} FROM responses WHERE owner = ? AND id = ?"
    row = connection.execute(asked, (owner, response_id)).fetchone()
    if row is None:
        return None
    with checked(response_id):
        response, background, status, log, is_response = row
        response, status = text_of(response), text_of(status)
        if not is_response or status not in (*get_args(Status), LOST):
            raise ValueError
        if status == LOST:
            status = "failed"
            response = said(json.loads(response) | {"status": status, "error": ENDED_WITH_SERVER})
        return Stored(response, bool(background), status, log)


def conversation_part(connection: sqlite3.Connection, owner: str, response_id: str, *, output: bool) -> Part:
    """Return the items up to a response, back to the first response that is not here."""
    turns = list(bounded(_turns(connection, owner, response_id)))
    missing = turns[-1].previous if turns else response_id
    items: list[dict[str, Any]] = []
    for number, turn in enumerate(reversed(turns), 1):
        items += turn.items(output=output or number < len(turns))
    return Part(items, missing, sum(turn.n_bytes for turn in turns))


def items_of(connection: sqlite3.Connection, owner: str, response_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return input and output of these responses, without earlier ones; missing responses are left out."""
    turns = bounded(filter(None, (_turn(connection, owner, one) for one in response_ids)))
    return [item for turn in turns for item in turn.items(output=True)]


def bounded(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Iterate over responses that are together short enough to be continued, else raise StoreError."""
    length = 0
    for turn in turns:
        length += turn.n_bytes
        if length > MAX_CONVERSATION_BYTES:
            raise too_long(f"the conversation has more than {MAX_CONVERSATION_BYTES:,} bytes")
        yield turn


def _turns(connection: sqlite3.Connection, owner: str, response_id: str) -> Iterator[Turn]:
    """Iterate from the last turn to the first. Each is marked as used, so that none is deleted before the others."""
    following: str | None = response_id
    known: set[str] = set()
    while following is not None and (turn := _turn(connection, owner, following, now=time.time())) is not None:
        known.add(following)
        following = turn.previous
        if following in known:  # it took the id of a deleted response that others continue
            raise not_found(following)
        yield turn


def _turn(connection: sqlite3.Connection, owner: str, response_id: str, now: float | None = None) -> Turn | None:
    """Return a response with its input, if there is one; it is marked as used `now`."""
    asked = "SELECT rowid, used, previous, input, response FROM responses WHERE owner = ? AND id = ?"
    row = connection.execute(asked, (owner, response_id)).fetchone()
    if row is None:
        return None
    with checked(response_id):
        number, used, previous, given, answered = row
        turn = Turn(response_id, given, answered, None if previous is None else text_of(previous))
        is_old = now is not None and now - used > NOTED_SECONDS
    if is_old:
        connection.execute("UPDATE responses SET used = ? WHERE rowid = ?", (now, number))
    return turn


@contextmanager
def checked(response_id: str) -> Iterator[None]:
    """Raise StoreError, which shows nothing of the data, for any error inside the block."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        raise damaged(response_id) from None


def text_of(value: Any) -> str:
    """Return the text; ValueError or AttributeError if the value is not a text."""
    text: str = value.decode()
    return text


def are_items(items: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether this can be a part of a conversation."""
    return isinstance(items, list) and all(isinstance(one, dict) and isinstance(one.get("id"), str) for one in items)


def said(value: Any) -> str:
    """Return JSON. A list's entries are encoded one by one: while one is encoded, no other thread of Python runs."""
    if isinstance(value, list):
        return f"[{','.join([said(entry) for entry in value])}]"
    return json.dumps(value, separators=(",", ":"))
