"""How far an answer has come to its client, through a front: what another server must know to go on with it.

The server that answers marks its stream: each mark says which tokens the bytes up to a place tell of. The front counts
the bytes that it hands on. If the server is lost, another one gets the request with what was delivered. It generates
the same tokens again, so that samplers, constraints and texts are where they were, and writes what comes after them.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyllmcancel.events import Delta

NOTHING, OPENING, DELTAS, ALL, FAILURE = range(5)
"""Parts of an answer: none, the events before its tokens, those of tokens, the last ones, an error in their place."""
HIDDEN = -1  # in place of a token that is not shown, such as the one that ends an answer
MARK = struct.Struct("!QB")
TOKEN = struct.Struct("!Hi")


class Promise(NamedTuple):
    """Everything that an answer depends on besides its request. A server with the same promise goes on with it."""

    server: str | None  # `pyllmcancel.server.digests.server_digest`; None if answers of the server may differ
    prompt: int  # a digest of the prompts' tokens
    seed: int  # which the server may have drawn
    created_at: float  # in seconds since the epoch


class Delivered:
    """The part of an answer that its client has got."""

    def __init__(self) -> None:
        self.n_bytes = 0  # of the body so far
        self.part = NOTHING  # that was written last
        self.tokens: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))  # of each choice
        self.promise: Promise | None = None  # until the server has reported it
        self._settled = self._marked = 0  # bytes that marks account for: those that came, and all
        self._fails_at: int | None = None  # where an error begins
        self._marks: deque[tuple[int, bytes]] = deque()  # whose bytes have not all been delivered

    # -- in the front -------------------------------------------------------------------------------------------------

    def note_mark(self, mark: bytes) -> bool:
        """Take a mark, which comes before its bytes. Return True if these are an error, which is not delivered yet."""
        end, part = MARK.unpack_from(mark)
        if part == FAILURE:
            self._fails_at = self._marked
            return True
        self._marked = end
        self._marks.append((end, mark))
        self._settle()
        return False

    def without_failure(self, piece: bytes) -> tuple[bytes, bytes]:
        """Return the next bytes that may be delivered, and those of an error that ends the answer."""
        n_sound = len(piece) if self._fails_at is None else max(0, self._fails_at - self.n_bytes)
        return piece[:n_sound], piece[n_sound:]

    def add(self, piece: bytes) -> None:
        """Note that these bytes are on their way to the client."""
        self.n_bytes += len(piece)
        if self._marks:
            self._settle()

    def _settle(self) -> None:
        while self._marks and self._marks[0][0] <= self.n_bytes:
            self._settled, mark = self._marks.popleft()
            self.part = max(self.part, mark[MARK.size - 1])
            for index, token in TOKEN.iter_unpack(mark[MARK.size :]):
                self.tokens[index].append(token)

    def forget(self) -> None:
        """Have the answer begin anew: nothing of it was delivered."""
        self.promise = None
        self.tokens.clear()

    def lose_rest(self) -> None:
        """Forget what the server has reported of bytes that did not come."""
        self._marks.clear()
        self._marked, self._fails_at = self._settled, None

    @property
    def can_go_on(self) -> bool:
        """True if another server can write what comes next."""
        return self.n_bytes == 0 or (self._settled == self.n_bytes and self._is_promised)

    @property
    def _is_promised(self) -> bool:
        return self.promise is not None and self.promise.server is not None

    def as_head(self) -> bytes:
        """Return it as JSON; nothing if another server begins from the start."""
        if not self._is_promised:
            return b""
        known = {index: list(tokens) for index, tokens in self.tokens.items()}
        return json.dumps([self.n_bytes, self.part, known, self.promise], separators=(",", ":")).encode()

    # -- in the server that goes on -----------------------------------------------------------------------------------

    @classmethod
    def read(cls, head: bytes) -> Delivered:
        """Return what `as_head` has written; ValueError if it is nothing of the kind."""
        made = cls()
        try:
            made.n_bytes, made.part, known, promise = json.loads(head)
            made.tokens.update({int(index): array("i", tokens) for index, tokens in known.items()})
            made.promise = Promise(*promise)
        except (TypeError, OverflowError, AttributeError) as error:
            raise ValueError(str(error)) from None
        return made

    def known(self, index: int) -> array[int]:
        """Return the tokens that this choice begins with."""
        tokens = self.tokens.get(index, array("i"))
        return tokens[:-1] if tokens and tokens[-1] == HIDDEN else tokens


class Marks:
    """Marks the body of one answer, and leaves out what another server has delivered. Used in the event loop only."""

    def __init__(self, delivered: Delivered | None) -> None:
        self._delivered = delivered or Delivered()
        self._n_bytes = self._delivered.n_bytes
        self._n_seen: dict[int, int] = defaultdict(int)  # deltas of each choice

    def is_new(self, delta: Delta) -> bool:
        """Return whether a delta, the next one of its choice, is not delivered yet."""
        n_delivered = len(self._delivered.tokens.get(delta.index, ()))
        if delta.prompt_done is not None:
            return not n_delivered
        self._n_seen[delta.index] += 1
        return self._n_seen[delta.index] > n_delivered

    def has(self, part: int) -> bool:
        """Return whether the events of this part are delivered."""
        return part in (OPENING, ALL) and part <= self._delivered.part

    def mark(self, part: int, n_bytes: int, new: Iterable[Delta] = ()) -> bytes:
        """Return the mark of the next `n_bytes`, which are the text of these deltas."""
        self._n_bytes += n_bytes
        tokens = b"".join(TOKEN.pack(one.index, *(one.tokens or (HIDDEN,))) for one in new if one.prompt_done is None)
        return MARK.pack(self._n_bytes, part) + tokens
