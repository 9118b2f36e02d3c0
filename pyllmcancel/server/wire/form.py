"""The required form of an answer in OpenAI's dialect: one form at most, under one of several names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from pyllmcancel.constraints.bounded import NamedRule, NamedSchema
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.wire.fields import Name, RequestBody, Sent, optional
from pyllmcancel.server.wire.sampling import NO_EFFECT, extra

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
MAX_CHOICE_TEXT = 4_096  # characters
# As in a string of GBNF.
ESCAPED_OR_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}

AnswerText = Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_TEXT)]
Choices = Annotated[list[AnswerText], Field(min_length=1, max_length=1_000, fail_fast=True)]
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_TEXT)]


class FormatBody(RequestBody):
    """The base of the objects that ask for a form: a key that is not understood could be the form itself."""

    model_config = ConfigDict(extra="forbid")


class TextFormat(FormatBody):
    type: Literal["text"]


class JsonObjectFormat(FormatBody):
    type: Literal["json_object"]
    # A field cannot have the name of one of its class's methods.
    schema_: dict[str, Any] | None = optional("Not in OpenAI's API: llama-server's name for a schema.", alias="schema")


class SchemaOfFormat(FormatBody):
    name: Name | None = Field(None, examples=["answer"])
    description: str | None = None
    schema_: dict[str, Any] = Field(
        alias="schema",
        description="Schema that the answer obeys.",
        examples=[{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}],
    )
    strict: bool | None = optional(
        "If true, a schema that cannot be enforced is refused; otherwise that part is ignored and reported."
    )


class JsonSchemaFormat(FormatBody):
    type: Literal["json_schema"]
    json_schema: SchemaOfFormat | None = None
    schema_: dict[str, Any] | None = optional(
        "Not in OpenAI's API: llama-server's schema without a name.", alias="schema"
    )

    @model_validator(mode="after")
    def _has_one(self) -> JsonSchemaFormat:
        if (self.json_schema is None) == (self.schema_ is None):
            raise ValueError("needs json_schema, with a schema in it")
        return self


class RegexFormat(FormatBody):
    type: Literal["regex"]
    pattern: Pattern


class GrammarFormat(FormatBody):
    type: Literal["grammar"]
    grammar: Annotated[str, Field(min_length=1)]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat, Field(discriminator="type")
]


class StructuredOutputs(Sent):
    """vLLM's field. Its other members would change the answer, so they are refused."""

    model_config = ConfigDict(extra="forbid")

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: str | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: Literal[None] = None
    structural_tag: Literal[None] = None


class Gbnf(NamedTuple):
    """A grammar for the sampler, and the field that it came in."""

    text: str
    param: str


Form = NamedSchema | NamedRule | Gbnf


class FormFields(Sent):
    response_format: ResponseFormat | None = optional(
        "The form that the text must have.", examples=[{"type": "json_object"}]
    )
    json_schema: dict[str, Any] | None = extra(
        "The answer is JSON that obeys this schema.", examples=[{"type": "object"}]
    )
    grammar: str | None = extra(
        "GBNF whose root rule is `root`: the answer obeys it.", examples=['root ::= "yes" | "no"']
    )
    guided_json: dict[str, Any] | str | None = extra("vLLM's: as `json_schema`.")
    guided_regex: Pattern | None = extra("vLLM's: the whole answer matches it.")
    guided_choice: Choices | None = extra("vLLM's: the answer is one of these texts.")
    guided_grammar: str | None = extra("vLLM's: GBNF whose root rule is `root`, or Lark whose first rule is `start`.")
    guided_decoding_backend: str | None = extra(f"{NO_EFFECT} there is only one backend.")
    structured_outputs: StructuredOutputs | None = extra("vLLM's: all of these in one object.")
    format: Literal["", "json"] | dict[str, Any] | None = extra("Ollama's: `json`, or a schema.")

    @cached_property
    def form(self) -> Form | None:
        """The form that the text must have; InvalidRequestError if two fields name one."""
        forms: list[Form] = []
        match self.response_format:
            case JsonObjectFormat(schema_=given):
                forms.append(NamedSchema(given or ANY_OBJECT, "response_format", lenient=True))
            case JsonSchemaFormat(json_schema=None, schema_=dict() as given):
                forms.append(NamedSchema(given, "response_format", lenient=True))
            case JsonSchemaFormat(json_schema=SchemaOfFormat(schema_=given, strict=strict)):
                forms.append(NamedSchema(given, "response_format", lenient=strict is not True))
            case RegexFormat(pattern=pattern):
                forms.append(regex_rule(pattern, "response_format"))
            case GrammarFormat(grammar=grammar):
                forms.append(grammar_form(grammar, "response_format"))
        outputs = self.structured_outputs or StructuredOutputs.model_validate({})
        table: list[tuple[str, Callable[[Any, str], Form], Any]] = [
            ("json_schema", schema_form, self.json_schema),
            ("format", schema_form, ANY_OBJECT if self.format == "json" else self.format or None),
            ("guided_json", schema_form, self.guided_json),
            ("guided_regex", regex_rule, self.guided_regex),
            ("guided_choice", choice_form, self.guided_choice),
            ("guided_grammar", grammar_form, self.guided_grammar or None),
            ("structured_outputs", schema_form, outputs.json_),
            ("structured_outputs", schema_form, ANY_OBJECT if outputs.json_object and outputs.json_ is None else None),
            ("structured_outputs", regex_rule, outputs.regex),
            ("structured_outputs", choice_form, outputs.choice),
            ("structured_outputs", grammar_form, outputs.grammar or None),
            ("grammar", Gbnf, self.grammar or None),
        ]
        forms += (make(given, param) for param, make, given in table if given is not None)
        if len(forms) > 1:
            message = f"{forms[1].param} cannot be combined with {forms[0].param}: an answer has one form"
            raise InvalidRequestError(message, forms[1].param)
        return forms[0] if forms else None


def schema_form(given: Mapping[str, Any] | str, param: str) -> NamedSchema:
    """Return the form of a schema, which may be given as JSON in a text."""
    found: Any = given
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except ValueError:
            found = None
    if not isinstance(found, dict):
        raise InvalidRequestError("must be a JSON schema, or a text that is one", param)
    return NamedSchema(found, param, lenient=True)


def choice_form(texts: list[str], param: str) -> Gbnf:
    return Gbnf("root ::= " + " | ".join(map(gbnf_text, texts)), param)


def grammar_form(text: str, param: str) -> Form:
    """Return the form of a grammar in GBNF or in Lark. The mark between a rule's name and its body distinguishes
    them.
    """
    return Gbnf(text, param) if "::=" in text else NamedRule(text, param)


def regex_rule(pattern: str, param: str) -> NamedRule:
    # A slash would end the pattern, and a line feed its rule.
    escaped = ESCAPED_OR_SLASH.sub(lambda found: found[1] or r"\/", pattern).replace("\n", r"\n")
    return NamedRule(f"start: /{escaped}/", param)


def gbnf_text(text: str) -> str:
    """Return a text as a string of GBNF."""
    return '"' + "".join(ESCAPES.get(one, one if one.isprintable() else gbnf_code(one)) for one in text) + '"'


def gbnf_code(character: str) -> str:
    code = ord(character)
    return f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}"
