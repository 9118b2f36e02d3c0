"""Functions that run in a process of their own, within limits; see `helper`. The server does not import this module.

A message is JSON after its length: a function's name and arguments, and in return its result or an error's text.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np

from pyllmcancel.chat.needs import TOOL, found_needs
from pyllmcancel.chat.order import STEPS, arranged
from pyllmcancel.constraints.gbnf_schema import with_plain_schemas, with_schemas
from pyllmcancel.errors import ConstraintError, InvalidRequestError
from pyllmcancel.helper import HEAD, OPENING_CPU_SECONDS, START_SECONDS, WALL_SECONDS
from pyllmcancel.system import end_by_limits_only, limit_call, limit_memory, memory_in_use

FIRST_BYTES = 32
NEEDLE = "needle"
QUESTION = {"role": "user", "content": "x"}
TIRED_MIB = 192  # of memory that it has not freed; then there is a new process


class Json(bytes):
    """A result that is already encoded as JSON."""


class Functions:
    """Everything that can be called, by its name."""

    def __init__(self) -> None:
        self._templates: dict[str, Any] = {}  # by purpose: "chats" and, for some models, "tools"
        self._refused: dict[str, str] = {}  # why one of the two cannot be compiled
        self._jinja = True
        self._needs: dict[str, list[str]] = {"chats": [], "tools": []}  # of chats without tools, and with them
        self._guidance: Any = None

    def open_template(
        self, source: str, bos: str, eos: str, tool_use_source: str, jinja: bool = True
    ) -> dict[str, Any]:
        """Compile a template for `apply_template`; return its facts, why one of two is ``refused`` among them."""
        from pyllmcancel._native import ChatTemplate
        from pyllmcancel.chat.jinja_engine import Engine

        self._jinja = jinja
        engine = Engine(adapts=jinja)
        if not jinja:
            self._templates["chats"] = ChatTemplate(source, engine, bos, eos)
            self._render({"messages": [QUESTION]})  # the template is recognised here, or this raises
            self._needs["chats"] = self._needs["tools"] = self._found_needs([])
            caps = {**dict.fromkeys(self._templates["chats"].caps, False), "supports_system_role": True}
            return {"caps": caps, "wraps_content": False, "needs": self._needs, "refused": {}}
        for purpose, text in {"chats": source, "tools": tool_use_source}.items():
            try:
                if text:
                    self._templates[purpose] = ChatTemplate(text, engine, bos, eos)
            except InvalidRequestError as error:
                self._refused[purpose] = str(error)
        if not self._templates:
            raise InvalidRequestError(self._refused["chats"], "")
        caps = dict(list(self._templates.values())[-1].caps)  # the one for tools counts, if there is one
        self._needs = {"chats": self._found_needs([]), "tools": self._found_needs([TOOL])}
        wraps_content = self._wraps_content()
        return {"caps": caps, "wraps_content": wraps_content, "needs": self._needs, "refused": self._refused}

    def apply_template(self, inputs: dict[str, Any]) -> Json:
        """Render a conversation, arranged as this template needs it.

        If the template still refuses the conversation, other arrangements are tried. The error is then that of the
        first attempt.
        """
        ready, unenforced = with_schemas(inputs)
        refusals = []
        for way in self._ways(ready):
            try:
                return Json(json.dumps(unenforced).encode()[:-1] + b"," + self._render(way)[1:])
            except InvalidRequestError as error:
                refusals.append(error)
        raise refusals[0]

    def _ways(self, inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        tools, messages = inputs.get("tools") or [], inputs["messages"]
        usual = arranged(messages, self._needs["tools" if tools else "chats"])
        yield {**inputs, "messages": usual}
        strictest = arranged(messages, STEPS)
        if strictest != usual:
            yield {**inputs, "messages": strictest}
        if tools:  # a template that reads schemas may not expect all kinds of them, but it knows these
            yield {**inputs, "messages": usual, "tools": with_plain_schemas(tools, inputs["tool_schemas"])}

    def _render(self, inputs: dict[str, Any]) -> Json:
        purpose = "tools" if inputs.get("tools") and {"tools"} & (self._templates.keys() | self._refused) else "chats"
        if purpose in self._refused:
            raise InvalidRequestError(self._refused[purpose], "")
        text = json.dumps({**inputs, "use_jinja": self._jinja})
        return Json(self._templates[purpose].apply(text.encode()))

    def _found_needs(self, tools: list[dict[str, Any]]) -> list[str]:
        return found_needs(
            lambda messages: str(json.loads(self._render({"messages": messages, "tools": tools}))["prompt"])
        )

    def _wraps_content(self) -> bool:
        """Return whether an answer's text is preceded by more than the generation prompt, blanks and reasoning."""
        answer = {"role": "assistant", "content": NEEDLE}
        try:
            asked = json.loads(self.apply_template({"messages": [QUESTION]}))
            answered = json.loads(self.apply_template({"messages": [QUESTION, answer, QUESTION]}))["prompt"]
        except InvalidRequestError:
            return False  # chats will report the error
        opening, before = asked["prompt"], answered.partition(NEEDLE)[0]
        for tag in filter(None, (asked["thinking_start_tag"], *asked["thinking_end_tags"])):
            opening, before = opening.replace(tag, ""), before.replace(tag, "")
        n_common = next((n for n, (a, b) in enumerate(zip(opening, before, strict=False)) if a != b), len(opening))
        return bool(before[n_common:].strip())

    def open_guidance(self) -> None:
        """Load the parts that `compile_schema` and `compile_grammar` need."""
        from pyllmcancel.constraints.guidance import Guidance, PlainBytes

        self._guidance = Guidance(cast("Any", PlainBytes()))
        _ = self._guidance.tokenizer

    def compile_schema(self, schema: dict[str, Any], lenient: bool) -> None:
        from pyllmcancel.constraints.guidance import json_rule

        self._guidance.check_schema(schema, "", lenient=lenient)
        self.compile_grammar(f"start: {json_rule(schema, lenient=lenient)}")

    def compile_grammar(self, grammar: str) -> None:
        constraint = self._guidance.compile(grammar, "").new()
        # Some limits show only when the answer has begun.
        try:
            for _ in range(FIRST_BYTES):
                allowed = np.flatnonzero(np.unpackbits(constraint.mask().view(np.uint8), bitorder="little"))
                if constraint.accept(int(allowed[0])):
                    break
        except ConstraintError as error:
            raise InvalidRequestError(str(error), "") from error


def main() -> None:
    cpu_seconds, memory_mib = float(sys.argv[1]), int(sys.argv[2])
    # The process ends with the server, which closes its end of the socket then, and not by a SIGTERM to the process
    # group.
    end_by_limits_only()
    load_libraries()
    limit_memory(memory_mib)
    functions = Functions()
    with socket.socket(fileno=0) as peer, suppress(OSError):  # the server has ended, or was killed
        answer_calls(peer, functions, cpu_seconds)


def answer_calls(peer: socket.socket, functions: Functions, cpu_seconds: float) -> None:
    """Answer calls until the server ends."""
    calls, answers = peer.makefile("rb"), peer.makefile("wb")
    rested: int | None = None
    while (head := calls.read(HEAD)) and (text := calls.read(int.from_bytes(head, "little"))):
        name, *arguments = json.loads(text)
        # For errors that no Python code could handle either.
        limit_call(*((OPENING_CPU_SECONDS, START_SECONDS) if rested is None else (cpu_seconds, WALL_SECONDS)))
        try:
            answer = outcome(getattr(functions, name), arguments, rested)
        except MemoryError:
            os._exit(1)  # the server understands this; an orderly end takes a while, and memory
        limit_call(0.0, 0.0)
        if rested is None:
            rested = memory_in_use(1)
        answers.write(len(answer).to_bytes(HEAD, "little") + answer)
        answers.flush()


def load_libraries() -> None:
    """Load libraries before the memory limit is set, to which their mappings do not belong: cuBLAS alone exceeds it."""
    from pyllmcancel import _native  # noqa: F401


def outcome(function: Any, arguments: list[Any], rested: int | None) -> bytes:
    """Return the answer to a call, even if it fails. `rested` are the process's bytes after the opening call."""
    key = "error"
    try:
        result = function(*arguments)
        key, text = "result", result if isinstance(result, Json) else json.dumps(result).encode()
    except InvalidRequestError as error:
        text = json.dumps(str(error)).encode()
    except MemoryError:
        raise
    except Exception as error:
        text = json.dumps(f"{type(error).__name__}: {error}").encode()
    # Memory that one call took, and the allocator keeps, would count against the next.
    last = json.dumps(rested is not None and (memory_in_use(1) or 0) - rested > TIRED_MIB << 20)
    return f'{{"{key}": '.encode() + text + f', "last": {last}}}'.encode()


if __name__ == "__main__":
    main()
