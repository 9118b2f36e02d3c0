"""The client's fields that say whether, and how much, a model reasons before it answers. Clients have many names for
it.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field

from pyllmcancel.server.wire.fields import RequestBody
from pyllmcancel.server.wire.sampling import MAX_INT, extra

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
        for field, wanted in self._preferences():
            if wanted in (False, "none"):  # a model that cannot reason satisfies this anyway
                found.setdefault("enable_thinking", False)
            elif isinstance(wanted, str) and "reasoning_effort" in known:
                found.setdefault("reasoning_effort", wanted)
            elif "enable_thinking" in known:
                found.setdefault("enable_thinking", True)
            else:
                self.ignore(field)
        return found

    def _preferences(self) -> list[tuple[str, bool | str]]:
        """Iterate over the fields that are set, with their values; the first one counts."""
        reasoning, thinking = self.reasoning, self.thinking
        said: list[tuple[str, bool | str | None]] = [
            ("reasoning_effort", self.reasoning_effort),
            ("reasoning", None if reasoning is None else reasoning.effort or reasoning.enabled),
            ("think", self.think),
            ("enable_thinking", self.enable_thinking),
            ("thinking", None if thinking is None or thinking.type == "auto" else thinking.type != "disabled"),
        ]
        return [(field, wanted) for field, wanted in said if wanted is not None]
