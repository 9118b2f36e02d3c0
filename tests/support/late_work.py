"""``pyllmcancel serve`` that says in its log what is made, imported, read or started after it was ready.

Of what takes so long that a stream would stand still, everything is made before: `tests.http.test_first_requests`.
"""

import importlib.abc
import linecache
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import fastapi.routing
from pydantic._internal import _generate_schema

import pyllmcancel.server.running.process
from pyllmcancel.cli import main
from pyllmcancel.constraints import guidance

LATE = "late:"
# Audit events: code that is run (a module's, a class's methods), processes, databases, names that are looked up.
EVENTS = frozenset({"exec", "compile", "subprocess.Popen", "sqlite3.connect", "socket.getaddrinfo", "ctypes.dlopen"})


class Watch(importlib.abc.MetaPathFinder):
    """Writes a line for each event from `begin` on; asked for every module that is not imported yet."""

    def __init__(self) -> None:
        self._watches = False

    def begin(self) -> None:
        self._watches = True

    def note(self, kind: str, what: object) -> None:
        if self._watches:
            shown = str(what)[:200].replace("\n", " ")
            sys.stderr.write(f"{LATE} {kind} {shown} in {threading.current_thread().name}\n")

    def find_spec(self, name: str, *_: Any) -> None:
        self.note("import", name)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            self.note(event, arguments[:2])

    def before(self, owner: Any, name: str) -> None:
        """Note each call of a function."""
        function: Callable[..., Any] = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            self.note(f"{owner.__name__}.{name}", [str(argument)[:80] for argument in arguments[:2]])
            return function(*arguments, **named)

        setattr(owner, name, noted)


def run() -> int:
    watch = Watch()
    sys.meta_path.insert(0, watch)
    sys.addaudithook(watch.audit)
    watch.before(_generate_schema.GenerateSchema, "__init__")  # of a model, a type or a route's answer
    watch.before(fastapi.routing, "get_dependant")  # of a route
    watch.before(linecache, "updatecache")  # a source file
    watch.before(re._compiler, "compile")  # type: ignore[attr-defined]
    watch.before(guidance.Vocabulary, "tokenizer")

    def told(*arguments: Any, **named: Any) -> list[str]:
        watch.begin()
        return first_steps(*arguments, **named)

    first_steps = pyllmcancel.server.running.process.first_steps
    pyllmcancel.server.running.process.first_steps = told  # said when the server is ready
    return main()


if __name__ == "__main__":
    sys.exit(run())
