"""Chat templates, rendered by the library that they are written for. Only the helper process imports this.

Jinja2 in its sandbox, with the additions of transformers' `apply_chat_template`. llama.cpp's chat layer calls it by
`_native.ChatTemplate`, to analyse a template as well as to render a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import datetime
from traceback import walk_tb
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from pyllmcancel.chat.template_caps import TALK, caps_of
from pyllmcancel.chat.template_tools import in_words, plain_tools

MAX_ERROR = 300  # characters of the error that are reported

Variables = dict[str, Any]
Way = Callable[[Variables], Variables]


class TemplateFault(Exception):  # noqa: N818 - `TemplateError` is Jinja2's
    """A template cannot be compiled, or refuses its input. The message is one line, with the template's line number."""


class Engine:
    """Templates of one process, each compiled once. If it `adapts`, templates without tools get tools in words."""

    def __init__(self, *, adapts: bool = False) -> None:
        self._adapts = adapts
        self._environment = environment()
        self._programs: dict[str, Program] = {}

    def caps(self, source: str) -> dict[str, bool]:
        """Return the capabilities of a template, by llama.cpp's names; TemplateFault if it cannot be compiled."""
        return self._program(source).caps

    def render(self, source: str, variables: str) -> str:
        """Render a template with its variables, which are JSON; TemplateFault if it refuses them, or fails."""
        return self._program(source).render(variables)

    def _program(self, source: str) -> Program:
        if source not in self._programs:
            self._programs[source] = Program(_compile(self._environment, source), adapts=self._adapts)
        return self._programs[source]


class Program:
    """A compiled template, and the variables that it expects in any case."""

    def __init__(self, template: Template, *, adapts: bool) -> None:
        self._template = template
        self._complete: Way = next((way for way in WAYS if self._knows(way)), WAYS[0])
        self.caps = caps_of(self._or_none)
        if adapts and not (self.caps["supports_tools"] or self.caps["supports_tool_calls"]):
            self._complete = self._in_words(self._complete)
            self.caps = caps_of(self._or_none)

    def render(self, variables: str) -> str:
        """Return the text, or raise a TemplateFault."""
        try:
            return self._render(json.loads(variables))
        except TemplateFault:
            given: Variables = json.loads(variables)  # parsed again, because the template may have changed them
            tools = plain_tools(given.get("tools"))
            # The template reads the tools' schemas, and knows only some kinds of them. The answer must obey the
            # complete ones.
            text = None if tools == given.get("tools") else self._or_none({**given, "tools": tools})
            if text is None:
                raise
            return text

    def _render(self, variables: Variables) -> str:
        # Not by Template.render, which compiles code for each frame of a traceback.
        context = self._template.new_context(self._complete(variables))
        try:
            return "".join(self._template.root_render_func(context))
        except MemoryError:
            raise
        except Exception as error:
            raise TemplateFault(_said(error, self._line(error))) from None

    def _or_none(self, variables: Variables) -> str | None:
        """Return None if the template refuses."""
        try:
            return self._render(deepcopy(variables))
        except TemplateFault:
            return None

    def _knows(self, way: Way) -> bool:
        self._complete = way
        return any(self._or_none(talk) is not None for talk in TALK)

    def _in_words(self, way: Way) -> Way:
        takes_system, takes_strings = self.caps["supports_system_role"], self.caps["supports_string_content"]
        return lambda variables: way(in_words(variables, takes_system=takes_system, takes_strings=takes_strings))

    def _line(self, error: Exception) -> int | None:
        """Return the innermost line of the template that was being rendered."""
        inner = [line for frame, line in walk_tb(error.__traceback__) if "__jinja_template__" in frame.f_globals]
        return self._template.get_corresponding_lineno(inner[-1]) if inner else None


def _as_transformers(variables: Variables) -> Variables:
    """Add the variables that transformers always defines."""
    return {"tools": None, "documents": None, "add_generation_prompt": False, **variables}


def _as_firefunction(variables: Variables) -> Variables:
    """For templates from before there was a variable `tools`: they expect texts."""
    functions = [tool["function"] for tool in variables.get("tools") or []]
    texts = {"functions": to_json(functions, indent=4), "datetime": strftime_now("%b %d %Y")}
    return {**texts, **_as_transformers(variables)}


# The first way in which a template renders a question is used. The second one is for templates that are meant for
# conversations with tools only, and use the tools without a check.
WAYS: tuple[Way, ...] = (_as_transformers, lambda variables: variables, _as_firefunction)


def environment() -> SandboxedEnvironment:
    """Make the environment as transformers does, except that lists may be appended to, as Kimi K2's template does."""
    made = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


class Generation(Extension):
    """The tag ``{% generation %}``, which marks an assistant's text for training; its content is rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

    def content(self, caller: Callable[[], str]) -> str:
        return caller()


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Convert to JSON as transformers does: no escapes for HTML, and results of `map` and `select` are lists."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _compile(environment: SandboxedEnvironment, source: str) -> Template:
    try:
        return environment.from_string(source)
    except MemoryError:
        raise
    except Exception as error:
        raise TemplateFault(_said(error, error.lineno if isinstance(error, TemplateSyntaxError) else None)) from None


def _said(error: Exception, line: int | None) -> str:
    match error:
        case RecursionError():
            text = "it is nested too deeply"
        case TemplateError():
            text = str(error.message or "")
        case SyntaxError():  # in the generated Python, whose lines mean nothing to users
            text = error.msg
        case _:
            text = str(error) or type(error).__name__
    place = "" if line is None else f"line {line}: "
    return place + " ".join(text.split())[:MAX_ERROR]
