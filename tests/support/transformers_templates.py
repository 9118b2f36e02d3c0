"""Templates as transformers' `apply_chat_template` renders them: the measure for what is rendered here.

Written after its documentation: an immutable sandbox, blocks without their lines, loop controls, three functions more.
"""

import json
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class AssistantBlocks(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **options: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **options)


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@cache
def compiled(source: str) -> Template:
    extensions = [AssistantBlocks, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment.from_string(source)


def rendered(source: str, variables: dict[str, Any]) -> str:
    """Raises whatever Jinja2, or the template, raises."""
    always = {"tools": None, "documents": None, "add_generation_prompt": False}
    return compiled(source).render(**{**always, **variables})
