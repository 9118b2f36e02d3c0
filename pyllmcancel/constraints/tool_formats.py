"""How models call tools: the texts around a call's name and its arguments, which differ from family to family.

The families are told apart by their chat templates, which show a model what calls look like. Sources of the formats:
the templates of Hermes 2 Pro and Qwen 2.5 and 3, of Llama 3.1 to 3.3, and of Mistral's tokenizers v3 and v11.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.constraints.triggered import Anywhere, AtStart, Trigger

if TYPE_CHECKING:
    from pyllmcancel._native import Model

NAME = r"[A-Za-z0-9_.:/-]{1,128}"
MOST_CALLS = 128
BLANKS = r"\s*"

Literal = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Function:
    """What a tool is to the model; `strict` insists on every keyword of its schema."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One family's form of one or more calls, in parts between which there may be blanks.

    Attributes
    ----------
    opening, separator, closing
        What stands before, between and after calls.
    begin, end
        What stands before and after each.
    arguments_key
        A call is a JSON object of the function's name and, by this key, its arguments; empty for a bare name.
    after_name
        What stands between a bare name and its arguments.
    marks
        Parts that some models have control tokens for. The first tells that calls begin; without, a call must be the
        whole answer.
    parallel
        Whether there may be several.
    native
        The template itself shows the tools; else they are described in the system's message.
    id_length
        One family's template refuses ids of other lengths.
    """

    name: str
    opening: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    arguments_key: str = "arguments"
    after_name: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    separator: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    parallel: bool = True
    native: bool = True
    id_length: int = 24

    @property
    def trigger(self) -> Trigger:
        """What tells that a call has begun."""
        return Anywhere(self.marks[0].encode()) if self.marks else AtStart(b'{"name":')

    def head(self, name: str) -> tuple[str, ...]:
        """Everything of a call up to its arguments."""
        if not self.arguments_key:
            return (*self.begin, name, *self.after_name)
        return (*self.begin, "{", '"name"', ":", f'"{name}"', ",", f'"{self.arguments_key}"', ":")

    def head_pattern(self) -> re.Pattern[str]:
        """As `head`, of any function, whose name is group 1."""
        parts = (re.escape(part).replace("NAME", f"({NAME})") for part in self.head("NAME"))
        return re.compile(BLANKS.join(parts))

    @property
    def tail(self) -> tuple[str, ...]:
        """Everything of a call after its arguments."""
        return ("}", *self.end) if self.arguments_key else self.end

    def grammar(
        self, functions: Sequence[Function], literal: Literal, *, parallel: bool = True, answer: str = ""
    ) -> str:
        """Grammar of an answer that calls some of `functions`.

        Parameters
        ----------
        literal
            Writes one of our parts as an expression: a mark as its control token, if the model has one.
        parallel
            Whether several calls may come, if the format has a way to write them.
        answer
            Expression of what may come instead of calls.
        """
        calls = [*map(literal, self.opening), "call"]
        if parallel and self.parallel:
            more = " BLANK? ".join(["", *map(literal, self.separator), "call"])
            calls.append(f"({more.strip()}){{0,{MOST_CALLS - 1}}}")
        calls += map(literal, self.closing)
        names = " | ".join(f"call_{index}" for index in range(len(functions)))
        lines = [
            f"start: calls{' | answer' if answer else ''}",
            # A model that ends a call with a line feed must not have to call once more.
            f"calls: {' BLANK? '.join(calls)}{' BLANK?' if self.parallel else ''}",
            f"call: {names}",
            *(line for index, function in enumerate(functions) for line in self._rules(index, function, literal)),
            r"BLANK: /[ \t\r\n]{1,32}/",
        ]
        return "\n".join([*lines, f"answer: {answer}"] if answer else lines)

    def _rules(self, index: int, function: Function, literal: Literal) -> list[str]:
        arguments = f"arguments_{index}"
        parts = [*map(literal, self.head(function.name)), arguments, *map(literal, self.tail)]
        schema = json_rule(object_schema(function.parameters), lenient=not function.strict)
        return [f"call_{index}: {' BLANK? '.join(parts)}", f"{arguments}: {schema}"]


HERMES = ToolFormat(name="hermes", begin=("<tool_call>",), end=("</tool_call>",), marks=("<tool_call>", "</tool_call>"))
LLAMA3 = ToolFormat(name="llama3", arguments_key="parameters", parallel=False)
MISTRAL = ToolFormat(
    name="mistral",
    opening=("[TOOL_CALLS]", "["),
    separator=(",",),
    closing=("]",),
    marks=("[TOOL_CALLS]",),
    id_length=9,
)
MISTRAL_V11 = ToolFormat(
    name="mistral-v11",
    begin=("[TOOL_CALLS]",),
    arguments_key="",
    after_name=("[ARGS]",),
    marks=("[TOOL_CALLS]", "[ARGS]"),
    id_length=9,
)
GENERIC = ToolFormat(name="generic", parallel=False, native=False)


def tool_format(template: str, *, knows_tools: bool) -> ToolFormat:
    """The form that a model's chat template shows to it.

    Parameters
    ----------
    template
        Its source.
    knows_tools
        Whether it uses a variable of that name.
    """
    if not knows_tools:
        return GENERIC
    if "[TOOL_CALLS]" in template:
        return MISTRAL_V11 if "[ARGS]" in template else MISTRAL
    # Qwen3-Coder and its like put XML into the same element, which is another form.
    if "<tool_call>" in template and "<function=" not in template:
        return HERMES
    if '"parameters"' in template and ("ipython" in template or "<|python_tag|>" in template):
        return LLAMA3
    return GENERIC


def object_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A function's parameters as a schema; arguments are an object even if that is not said."""
    says = {"type", "$ref", "anyOf", "oneOf", "allOf"} & parameters.keys()
    return dict(parameters) if says else {"type": "object", **parameters}


def literal(model: Model, text: str) -> str:
    """A text as a grammar's expression: the control token of that name, if there is one, whose text no other has."""
    token = control_token(model, text)
    return json.dumps(text) if token is None else f"<[{token}]>"


def control_token(model: Model, text: str) -> int | None:
    """The control token that is spelled so."""
    tokens = model.tokenize(text, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not model.piece(tokens[0]) else None
