"""What runs in a process of its own, within limits; see `helper`. The server does not import it.

A message is JSON behind its length: a function's name and arguments, back its result or an error's text.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from pyllmcancel.chat_template import ChatTemplate
from pyllmcancel.errors import ConstraintError, InvalidRequestError
from pyllmcancel.helper import HEAD, WALL_SECONDS

FIRST_BYTES = 32
TIRED_MIB = 192  # of memory that it has not given back; then there is a new process


class Functions:
    """Everything that can be called, by its name."""

    def __init__(self) -> None:
        self._template: ChatTemplate | None = None
        self._guidance: Any = None

    def open_template(self, source: str, bos: str, eos: str) -> dict[str, Any]:
        """Compile a template for `render`; what the server wants to know of it."""
        self._template = ChatTemplate(source, bos, eos)
        return {"variables": sorted(self._template.variables), "object_arguments": self._template.object_arguments}

    def render(self, messages: list[Any], variables: dict[str, Any]) -> str:
        assert self._template is not None
        return self._template.render(messages, **variables)

    def open_guidance(self) -> None:
        """Load what `compile_schema` and `compile_grammar` need."""
        from pyllmcancel.constraints.guidance import Guidance
        from pyllmcancel.constraints.plain_bytes import PlainBytes

        self._guidance = Guidance(cast("Any", PlainBytes()))
        _ = self._guidance.tokenizer

    def compile_schema(self, schema: dict[str, Any], lenient: bool) -> None:
        from pyllmcancel.constraints.guidance import json_rule

        self._guidance.check_schema(schema, "", lenient=lenient)
        self.compile_grammar(f"start: {json_rule(schema, lenient=lenient)}")

    def compile_grammar(self, grammar: str) -> None:
        constraint = self._guidance.compile(grammar, "").new()
        # Some of what is too much shows only when the answer has begun.
        try:
            for _ in range(FIRST_BYTES):
                allowed = np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little"))
                if constraint.accept(int(allowed[0])):
                    break
        except ConstraintError as error:
            raise InvalidRequestError(str(error), "") from error


def main() -> None:
    cpu_seconds, memory_mib = float(sys.argv[1]), int(sys.argv[2])
    # It ends with the server, whose end of the socket is closed then, not by a SIGTERM to the process group.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    limit_memory(memory_mib)
    functions = Functions()
    peer = socket.socket(fileno=0)
    while (text := receive(peer)) is not None:
        name, *arguments = json.loads(text)
        # What no Python code could end either: both signals end the process.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        answer = outcome(getattr(functions, name), arguments)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        peer.sendall(len(answer).to_bytes(HEAD, "little") + answer)


def limit_memory(mib: int) -> None:
    """Let this process have so much more than it has. Where that cannot be told, time alone is a limit."""
    size = memory(0)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + (mib << 20),) * 2)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def memory(field: int) -> int | None:
    """Bytes of this process: 0 all, 1 resident; None where that cannot be told.

    Not by `getrusage`, whose peak is that of the server that started us.
    """
    try:
        return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()
    except OSError:
        return None


def receive(peer: socket.socket) -> bytes | None:
    """The next message; None when there will be none."""
    head = peer.recv(HEAD, socket.MSG_WAITALL)
    if len(head) < HEAD:
        return None
    text = bytearray()
    left = int.from_bytes(head, "little")
    while left > 0:
        piece = peer.recv(min(left, 1 << 20))
        if not piece:
            return None
        text += piece
        left -= len(piece)
    return bytes(text)


def outcome(function: Any, arguments: list[Any]) -> bytes:
    """The answer to a call, whatever becomes of it."""
    answer: dict[str, Any] = {}
    try:
        answer["result"] = function(*arguments)
    except InvalidRequestError as error:
        answer["error"] = str(error)
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    # What one call took, and the allocator keeps, would count against the next.
    answer["last"] = (memory(1) or 0) > TIRED_MIB << 20
    return json.dumps(answer).encode()


if __name__ == "__main__":
    main()
