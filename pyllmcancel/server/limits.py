"""Everything that bounds what one client can ask of the server: the one place to look for a number.

Light to import: the command line reads the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyllmcancel.system import descriptor_limits

# -- fields of bodies: what no request that makes sense exceeds -------------------------------------------------------

MAX_PROMPTS = 128  # of one request; as many as it may have choices
MAX_TOOLS = 256  # rendering that many takes half of the time that a template has
MAX_MESSAGES = 10_000  # of one conversation
MAX_ARGUMENT_VALUES = 10_000  # of a past tool call's arguments, which are JSON in a text; more stay a text
MAX_EXTRAS = 10_000  # snippets beside an infill
MAX_STOP = 256  # characters of a stop string: each token's text is compared with all its beginnings
MAX_BIASES = 10_000  # tokens with a bias: each is looked at for each token that is generated
MAX_BIASED_TEXT = 256  # characters
MAX_FIELD_PATH = 256  # characters of one of `response_fields`
MAX_NAME = 8_192  # characters of a name that only its client understands
MAX_SESSION_ID = 256  # characters
MAX_CANCELS = 1024  # ids in one request to cancel several
# Bytes of a response, or of the conversation up to it, that another server is given: it is parsed on an event loop.
MAX_TO_PEERS = 1 << 20

# -- bodies as such ---------------------------------------------------------------------------------------------------

MAX_DEPTH = 100  # arrays and objects inside each other
MAX_FIELDS = 200  # of the outermost object
# A body so short is parsed, and its texts tokenized, at once; longer ones by workers, off the event loop.
INLINE_BODY = 4_096
# Bodies so short do not count towards `Limits.max_bodies`.
SMALL_BODY = 1 << 16

# -- workers ----------------------------------------------------------------------------------------------------------

# They share the GIL: more of them make the event loop and the engine wait longer for it, and no request faster.
WORKERS = 2
# Seconds for which a thread may keep the GIL that others wait for. Python's 5 ms, waited for at each token, add up.
GIL_SECONDS = 0.001
# Characters that are tokenized in one piece when a text is so long that it hardly fits.
PIECE = 1 << 16

# -- connections ------------------------------------------------------------------------------------------------------

# Seconds in which what still comes is read when the answer is complete: closing makes a kernel drop the answer unread.
LINGER_SECONDS = 2.0
ACCEPT_AT_ONCE = 16  # connections; then the event loop's other work has a turn
OTHER_FILES = 48  # descriptors of other files: the model, the log …, and connections that were just accepted
MOST_CONNECTIONS = 4_096

# -- clients that do not read ------------------------------------------------------------------------------------------

# Bytes that a kernel takes although it cannot send them; what a client's kernel takes is the client's to say.
UNSENT_BYTES = 1 << 14
# Deltas of a stream that wait for its client: at the first number its generation pauses, at the second it goes on.
MOST_UNREAD, FEW_UNREAD = 256, 64
# Connections of one address for whose clients bytes wait; of more the longest blocked is cancelled as stalled.
MOST_BLOCKED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that the command line sets.

    Attributes
    ----------
    max_body
        Longest request body, in bytes.
    max_body_values
        Most numbers, texts, keys … of a body; a prompt of tokens that just fits into the context is never too many.
    max_bodies
        Bytes of all bodies that are read, or worked on, at once; short ones are not counted. Of several owners each has
        at most as much as it leaves free, or one body.
    header_timeout, body_timeout
        Seconds for a request's head, from the connection or its first byte, and for its body.
    keep_alive
        Seconds that a connection may wait for its next request. A client library that keeps connections longer than the
        server does loses requests on them.
    max_event_clients
        Most readers of the feed of events; of several owners each has at most as many as it leaves free, or one.
    max_connections, max_connections_per_address
        At most so many; 0: as many as there are file descriptors for, and three quarters of them. One more closes the
        one that has waited longest for its client, and is refused if none waits.
    """

    max_body: int = 8 << 20
    max_body_values: int = 100_000
    max_bodies: int = 64 << 20
    header_timeout: float = 20.0
    body_timeout: float = 60.0
    keep_alive: float = 75.0
    client_timeout: float = 20.0
    reader_stall: float = 60.0
    max_event_clients: int = 64
    max_connections: int = 0
    max_connections_per_address: int = 0

    def values(self, n_ctx: int) -> int:
        """Most values of a body, where so many tokens fit into the context."""
        return max(self.max_body_values, n_ctx + 1_000)

    def connections(self) -> tuple[int, int]:
        """Most connections, of all addresses and of one."""
        room = int(min(descriptor_limits()[0] - OTHER_FILES, MOST_CONNECTIONS))
        most = max(1, min(self.max_connections or room, room))
        return most, min(self.max_connections_per_address or max(1, most * 3 // 4), most)
