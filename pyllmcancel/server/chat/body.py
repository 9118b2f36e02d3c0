"""A chat's request body, which is OpenAI's, with the tools that its answer may call, in other APIs' forms, too.

These are refused, because the server cannot honour them: audio in answers, files in messages, `web_search_options`,
`moderation`, and tools that are not functions. So are `functions` with `function_call`, which `tools` have replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, WithJsonSchema, model_validator

from pyllmcancel.constraints.bounded import NamedRule
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.messages import Message
from pyllmcancel.server.config import ReasoningFormat
from pyllmcancel.server.limits import MAX_MESSAGES, MAX_TOOLS
from pyllmcancel.server.wire.fields import RequestBody, optional
from pyllmcancel.server.wire.form import Gbnf
from pyllmcancel.server.wire.generation import MAX_LOGPROBS, OpenAIBody
from pyllmcancel.server.wire.sampling import MAX_INT, extra

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine

NAME = r"[A-Za-z0-9_.:/-]{1,128}"
FLAT = (None, "", "function")  # types of functions that are sent without an object around them


def _schema(value: Any) -> Any:
    if value == []:  # PHP's empty object
        return {}
    if not isinstance(value, dict | bool):
        raise ValueError("a JSON schema must be an object or a boolean")
    return value


# Any other mistake in a schema only means that the schema is not enforced.
Parameters = Annotated[
    Any, AfterValidator(_schema), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}]})
]


class FunctionSpec(RequestBody):
    name: str = Field(pattern=f"^{NAME}$", examples=["get_weather"])
    description: str | None = None
    parameters: Parameters | None = optional(
        "JSON schema that the arguments obey. Without a schema there are no arguments.",
        examples=[{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
    )
    strict: bool | None = optional("Refuse the request if a part of the schema cannot be enforced.")


class Tool(RequestBody):
    type: Literal["function"] = "function"
    function: FunctionSpec

    @model_validator(mode="before")
    @classmethod
    def _with_a_function(cls, tool: Any) -> Any:
        """Convert functions that some clients send as in other APIs: without an object around them."""
        if not isinstance(tool, dict) or tool.get("function") or "name" not in tool or tool.get("type") not in FLAT:
            return tool
        known = {name: tool[name] for name in FunctionSpec.model_fields if name in tool}
        if "input_schema" in tool:
            known.setdefault("parameters", tool["input_schema"])
        rest = {name: value for name, value in tool.items() if name not in (*known, "input_schema")}
        return rest | {"type": "function", "function": known}


class FunctionName(RequestBody):
    name: str


class NamedTool(RequestBody):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestBody):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedToolsChoice(RequestBody):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _in_usual_words(choice: Any) -> Any:
    """Convert other APIs' choices to OpenAI's."""
    match choice:
        case "any" | {"type": "any"}:
            return "required"
        case {"type": "none" | "auto" | "required" as kind}:
            return kind
        case {"type": "function" | "tool", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    return choice


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")],
    BeforeValidator(_in_usual_words),
]


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools that one answer may call, in the order of the request, with their indexes there."""

    tools: tuple[tuple[int, Tool], ...]
    choice: Literal["none", "auto", "required"]

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice != "none"


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(RequestBody):
    """OpenRouter's `reasoning` field."""

    effort: Effort | None = None
    enabled: bool | None = None


class Thinking(RequestBody):
    """The `thinking` field of GLM, DeepSeek and others, after Anthropic's."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = optional("Limit of reasoning tokens.", 0, MAX_INT)


class ThinkingFields(RequestBody):
    """The client's fields that say whether, and how much, a model reasons before it answers, by their many names."""

    reasoning_effort: Effort | None = optional(
        "Effort of reasoning, for models whose chat template supports it; otherwise reported and ignored."
    )
    reasoning: Reasoning | None = extra("OpenRouter's field for reasoning.")
    thinking: Thinking | None = extra("Other APIs' switch of reasoning.")
    enable_thinking: bool | None = extra("The same switch, as chat templates name it.")
    think: bool | Literal["low", "medium", "high"] | None = extra("Ollama's.")

    def thinking_variables(self, known: Set[str]) -> dict[str, Any]:
        """Return variables for a chat template that knows some. For a template with only a switch, any effort but
        none means on.
        """
        found: dict[str, Any] = {}
        reasoning, thinking = self.reasoning, self.thinking
        preferences: dict[str, bool | str | None] = {
            "reasoning_effort": self.reasoning_effort,
            "reasoning": None if reasoning is None else reasoning.effort or reasoning.enabled,
            "think": self.think,
            "enable_thinking": self.enable_thinking,
            "thinking": None if thinking is None or thinking.type == "auto" else thinking.type != "disabled",
        }
        for field, wanted in preferences.items():  # the first one counts
            if wanted is None:
                continue
            if wanted in (False, "none"):  # a model that cannot reason satisfies this anyway
                found.setdefault("enable_thinking", False)
            elif isinstance(wanted, str) and "reasoning_effort" in known:
                found.setdefault("reasoning_effort", wanted)
            elif "enable_thinking" in known:
                found.setdefault("enable_thinking", True)
            else:
                self.ignore(field)
        return found


class ChatBody(ThinkingFields, OpenAIBody):
    """The body of ``POST /v1/chat/completions``."""

    request_class = "chat"
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **OpenAIBody.refused_fields,
        **dict.fromkeys(("echo", "input", "input_extra", "input_prefix", "input_suffix", "prompt", "suffix"), ()),
        "best_of": (1,),
    }

    messages: list[Message] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        examples=[[{"role": "user", "content": "Write a function that adds two numbers."}]],
    )
    max_tokens: int | None = optional("As `max_completion_tokens`.", -1, MAX_INT)
    max_completion_tokens: int | None = optional(
        "Limit of the answer's tokens. -1, the default: until the model ends or the context is full; 0 only"
        " computes the prompt.",
        -1,
        MAX_INT,
    )
    logprobs: bool | None = optional("Report logprobs of the tokens.")
    top_logprobs: int | None = optional(
        "Number of the likeliest tokens to report in each place; above 0 it needs `logprobs`.", 0, MAX_LOGPROBS
    )
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = optional("Functions that the answer may call.")
    tool_choice: ToolChoice | None = optional("`auto` is the default if there are tools.", examples=["auto"])
    parallel_tool_calls: bool | None = optional("Allow several calls in an answer (the default).")
    chat_template_kwargs: dict[str, Any] | None = extra(
        "Variables of the model's chat template.", examples=[{"enable_thinking": False}]
    )
    add_generation_prompt: StrictBool | None = extra(
        "End the prompt with the beginning of the assistant's turn (the default)."
    )
    reasoning_format: ReasoningFormat | None = extra(
        "Where to put the model's reasoning; with `none` it stays in the text."
    )
    reasoning_budget_tokens: int | None = extra(
        "Limit of reasoning tokens; 0: no reasoning, -1: no limit.", -1, MAX_INT
    )
    thinking_budget_tokens: int | None = extra("As `reasoning_budget_tokens`, if that is not given.", -1, MAX_INT)
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = extra(
        "Continue the last message, which must be the assistant's. By default true if it is."
    )
    add_special_tokens: Literal[False] | None = extra("vLLM's: the chat template writes the tokens that begin texts.")
    modalities: list[Literal["text"]] | None = optional("Text is the only modality.")
    verbosity: Literal["low", "medium", "high"] | None = optional(
        "Ignored, because models here have no such setting; values other than `medium` are reported."
    )

    @property
    def most_tokens(self) -> int | None:
        limits = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        given = next((limit for limit in limits if limit is not None), -1)
        return None if given < 0 else given

    @property
    def most_logprobs(self) -> int | None:
        return (self.top_logprobs or self.n_probs or 0) if self.logprobs else self.n_probs or None

    @cached_property
    def tool_plan(self) -> ToolPlan:
        """The tools that the model is shown, and whether it must call one; InvalidRequestError if the choice names a
        tool that is not there.
        """
        tools, choice = self.tools or (), self.tool_choice
        names = [tool.function.name for tool in tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequestError(f"there are two tools named {name}", f"tools[{index}].function.name")
        allowed: set[str] | None = None  # all
        match choice:
            case NamedTool(function=function):
                allowed, choice = {function.name}, "required"
            case AllowedToolsChoice(allowed_tools=few):
                allowed, choice = {tool.function.name for tool in few.tools}, few.mode
        for name in (allowed or set()) - set(names):
            raise InvalidRequestError(f"there is no tool named {name}", "tool_choice")
        if choice == "required" and not tools:
            raise InvalidRequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
        shown = [(index, tool) for index, tool in enumerate(tools) if allowed is None or names[index] in allowed]
        return ToolPlan(tuple(shown), choice or "auto")

    def check(self, engine: Engine) -> None:
        super().check(engine)
        if self.verbosity not in (None, "medium"):
            self.ignore("verbosity")
        if self.tool_plan.may_call and isinstance(self.form, NamedRule | Gbnf):
            raise InvalidRequestError(f"{self.form.param} cannot be combined with tools", self.form.param)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        if self.limit_field and self.tool_plan.may_call:
            # The grammar of a call may require a token that the limit forbids.
            raise InvalidRequestError("calls of tools cannot be combined with other limits on tokens", self.limit_field)
