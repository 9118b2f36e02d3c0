"""A chat's request body, which is OpenAI's, and its translation for the engine.

These are refused, because the server cannot honour them: audio in answers, files in messages, `web_search_options`,
`moderation`, and tools that are not functions. So are `functions` with `function_call`, which `tools` have replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictBool

from pyllmcancel.constraints.bounded import NamedRule
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.messages import Message
from pyllmcancel.server.chat.tools import Tool, ToolChoice
from pyllmcancel.server.config import ReasoningFormat
from pyllmcancel.server.limits import MAX_MESSAGES, MAX_TOOLS
from pyllmcancel.server.wire.fields import RequestBody, between
from pyllmcancel.server.wire.form import Gbnf
from pyllmcancel.server.wire.generation import MAX_LOGPROBS, OpenAIBody
from pyllmcancel.server.wire.sampling import MAX_INT, extra

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.server.media.parts import MediaPart


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(RequestBody):
    """OpenRouter's `reasoning` field."""

    effort: Effort | None = None
    enabled: bool | None = None


class Thinking(RequestBody):
    """The `thinking` field of GLM, DeepSeek and others, after Anthropic's."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = Field(None, ge=0, le=MAX_INT, description="Limit of reasoning tokens.")


class ThinkingFields(RequestBody):
    """The client's fields that say whether, and how much, a model reasons before it answers, by their many names."""

    reasoning_effort: Effort | None = Field(
        None,
        description="Effort of reasoning, for models whose chat template supports it; otherwise reported and ignored.",
    )
    reasoning: Reasoning | None = Field(None, description=extra("OpenRouter's field for reasoning."))
    thinking: Thinking | None = Field(None, description=extra("Other APIs' switch of reasoning."))
    enable_thinking: bool | None = Field(None, description=extra("The same switch, as chat templates name it."))
    think: bool | Literal["low", "medium", "high"] | None = Field(None, description=extra("Ollama's."))

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
        "best_of": (1,),
        "echo": (),
        "input": (),
        "input_extra": (),
        "input_prefix": (),
        "input_suffix": (),
        "prompt": (),
        "suffix": (),
    }

    messages: list[Message] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        examples=[[{"role": "user", "content": "Write a function that adds two numbers."}]],
    )
    max_tokens: int | None = Field(None, ge=-1, le=MAX_INT, description="As `max_completion_tokens`.")
    max_completion_tokens: int | None = between(
        -1,
        MAX_INT,
        "Limit of the answer's tokens. -1, the default: until the model ends or the context is full; 0 only"
        " computes the prompt.",
    )
    logprobs: bool | None = Field(None, description="Report logprobs of the tokens.")
    top_logprobs: int | None = between(
        0, MAX_LOGPROBS, "Number of the likeliest tokens to report in each place; above 0 it needs `logprobs`."
    )
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Functions that the answer may call."
    )
    tool_choice: ToolChoice | None = Field(
        None, description="`auto` is the default if there are tools.", examples=["auto"]
    )
    parallel_tool_calls: bool | None = Field(None, description="Allow several calls in an answer (the default).")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description=extra("Variables of the model's chat template."), examples=[{"enable_thinking": False}]
    )
    add_generation_prompt: StrictBool | None = Field(
        None, description=extra("End the prompt with the beginning of the assistant's turn (the default).")
    )
    reasoning_format: ReasoningFormat | None = Field(
        None, description=extra("Where to put the model's reasoning; with `none` it stays in the text.")
    )
    reasoning_budget_tokens: int | None = between(
        -1, MAX_INT, extra("Limit of reasoning tokens; 0: no reasoning, -1: no limit.")
    )
    thinking_budget_tokens: int | None = between(
        -1, MAX_INT, extra("As `reasoning_budget_tokens`, if that is not given.")
    )
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = Field(
        None, description=extra("Continue the last message, which must be the assistant's. By default true if it is.")
    )
    add_special_tokens: Literal[False] | None = Field(
        None, description=extra("vLLM's: the chat template writes the tokens that begin texts.")
    )
    modalities: list[Literal["text"]] | None = Field(None, description="Text is the only modality.")
    verbosity: Literal["low", "medium", "high"] | None = Field(
        None, description="Ignored, because models here have no such setting; values other than `medium` are reported."
    )

    @property
    def media(self) -> list[MediaPart]:
        """The pictures and sounds of all messages, in their order."""
        return [part for message in self.messages for part in message.media]

    @property
    def most_tokens(self) -> int | None:
        limits = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        given = next((limit for limit in limits if limit is not None), -1)
        return None if given < 0 else given

    @property
    def reasoning_budget(self) -> int | None:
        """The client's limit of reasoning tokens; None if it names none, -1 for no limit."""
        thinking = None if self.thinking is None else self.thinking.budget_tokens
        named = (self.reasoning_budget_tokens, self.thinking_budget_tokens, thinking)
        return next((budget for budget in named if budget is not None), None)

    @property
    def most_logprobs(self) -> int | None:
        return (self.top_logprobs or self.n_probs or 0) if self.logprobs else self.n_probs or None

    @property
    def engine_names(self) -> dict[str, str]:
        # A grammar that is not the client's own is that of its tools.
        return {"prompt": "messages", "grammar": "tools"} | super().engine_names

    @property
    def may_call(self) -> bool:
        """True if the answer may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    def check(self, engine: Engine) -> None:
        super().check(engine)
        if self.verbosity not in (None, "medium"):
            self.ignore("verbosity")
        if self.may_call and isinstance(self.form, NamedRule | Gbnf):
            raise InvalidRequestError(f"{self.form.param} cannot be combined with tools", self.form.param)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        if self.limits_tokens and self.may_call:
            # The grammar of a call may require a token that the limit forbids.
            raise InvalidRequestError("calls of tools cannot be combined with other limits on tokens", self.limit_field)
