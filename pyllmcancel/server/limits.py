"""All limits of what one client can ask of the server, in one place.

Cheap to import: the command line reads the defaults.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

# -- fields of bodies: no sensible request exceeds these limits ------------------------------------------------------

MAX_PROMPTS = 128  # prompts of one request; as many as it may have choices
MAX_TOOLS = 256  # rendering this many takes half of the time limit of a template
MAX_MESSAGES = 10_000  # messages of one conversation
# values in a past tool call's arguments, which are JSON in a text; with more they stay a text
MAX_ARGUMENT_VALUES = 10_000
MAX_EXTRAS = 10_000  # snippets beside an infill
MAX_STOP = 256  # characters of a stop string: each token's text is compared with all its beginnings
MAX_BIASES = 10_000  # tokens with a bias: each is checked for every generated token
MAX_BIASED_TEXT = 256  # characters
MAX_FIELD_PATH = 256  # characters of one of `response_fields`
MAX_UNENFORCED = 16  # parts of schemas that are reported for one request, of its tools and of its text
MAX_NAME = 8_192  # characters of a name that has a meaning only for its client
MAX_SESSION_ID = 256  # characters
MAX_CANCELS = 1024  # ids in one request that cancels several
# Bytes of a conversation that one worker sends to another, which parses them on its event loop.
MAX_TO_WORKERS = 1 << 20

# -- bodies as a whole -----------------------------------------------------------------------------------------------

MAX_DEPTH = 100  # levels of nested arrays and objects
MAX_FIELDS = 200  # fields of the outermost object
# Up to this length a body is parsed, and its texts tokenized, at once; longer ones by workers, off the event loop.
INLINE_BODY = 4_096
# Bodies up to this length do not count towards `Limits.max_bodies`.
SMALL_BODY = 1 << 16

# -- workers ----------------------------------------------------------------------------------------------------------

# Workers share the GIL: with more of them the event loop and the engine wait longer for it, and no request is faster.
WORKERS = 2
PREPARERS = 2  # threads each for requests with templates or schemas, with pictures or sounds, and for samplers
# Seconds for which a thread may keep the GIL while others wait. Python's default of 5 ms, waited for at each token,
# adds up.
GIL_SECONDS = 0.001
# Characters that are tokenized in one piece if a text is so long that it hardly fits.
PIECE = 1 << 16

# -- connections ------------------------------------------------------------------------------------------------------

# Seconds in which the rest of the input is read after the answer: an early close would make a kernel drop the answer
# unread.
LINGER_SECONDS = 2.0
ACCEPT_AT_ONCE = 64  # connections accepted before the event loop's other work has a turn
OTHER_FILES = 48  # descriptors of other files: the model, the log, and connections that were just accepted
MAX_CONNECTIONS = 4_096

# -- clients that do not read ------------------------------------------------------------------------------------------

# Bytes that our kernel takes although it cannot send them; how many a client's kernel takes is the client's choice.
UNSENT_BYTES = 1 << 14
# Unread deltas of a stream: at the first number its generation pauses, at the second it continues.
MAX_UNREAD, FEW_UNREAD = 256, 64
# Bytes of an answer that can be taken up again; of more, the oldest are dropped. As many as in llama-server.
MAX_STREAM_BYTES = 4 << 20
MAX_STREAMS = 64  # such answers, of all owners
# Connections of one address whose clients do not read; with more, the longest blocked one is cancelled as stalled.
MAX_BLOCKED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that the command line sets: bytes, seconds and numbers."""

    max_body: int = 8 << 20  # bytes of a request's body
    # Numbers, texts, keys and so on in a body. A prompt of tokens that fits the context is never too long.
    max_body_values: int = 100_000
    # Bytes of all bodies in work at once; short ones do not count. With several owners, each may use at most as much as
    # it leaves free for others, or one body.
    max_bodies: int = 64 << 20
    header_timeout: float = 20.0  # for a request's head, from the connection or its first byte
    body_timeout: float = 60.0
    # Seconds that a connection may wait for its next request. A client library that keeps connections longer than the
    # server does loses requests on them.
    keep_alive: float = 75.0
    client_timeout: float = 20.0
    reader_stall: float = 60.0
    # Readers of the feed of events. With several owners, each may have at most as many as it leaves free, or one.
    max_event_clients: int = 64
    # 0: as many connections as there are file descriptors for, and three quarters of them. A new connection above the
    # limit closes the one that has been idle longest, and is refused if none is idle.
    max_connections: int = 0
    max_connections_per_address: int = 0

    def values(self, n_ctx: int) -> int:
        """Return the limit of values in a body, for a context of `n_ctx` tokens."""
        return max(self.max_body_values, n_ctx + 1_000)

    def connections(self) -> tuple[int, int]:
        """Return the limits of connections: of all addresses, and of one."""
        n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        room = MAX_CONNECTIONS if n_files == resource.RLIM_INFINITY else min(n_files - OTHER_FILES, MAX_CONNECTIONS)
        most = max(1, min(self.max_connections or room, room))
        return most, min(self.max_connections_per_address or max(1, most * 3 // 4), most)
