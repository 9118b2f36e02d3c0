"""Fake models with a chat template, whose answers a test writes down."""

from collections.abc import Sequence

import numpy as np

from pyllmcancel.adapters import Scales
from tests.support import fake_model

PARIS = '{"city": "Paris"}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + PARIS + "}\n</tool_call>"
# Reasoning in tags, calls in Hermes' form.
HERMES = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.tool_calls %}<|a|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}"
    "<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>"
    "{% endfor %}<|e|>"
    "{% else %}<|{{ m.role[0] }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|e|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|a|>{% endif %}"
)


class Templated(fake_model.Model):
    """A model that brings a chat template."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self.chat_template = template  # type: ignore[assignment]


class Says(Templated):
    """Answers so to everything."""

    def __init__(self, answer: str, template: str = HERMES) -> None:
        super().__init__(template)
        self.answer = answer.encode()

    def logits(self, tokens: Sequence[int], made: Sequence[Scales] = ()) -> np.ndarray:
        logits = super().logits(tokens, made)
        _, opening, said = bytes(tokens).rpartition(b"<|a|>")
        if opening and self.answer.startswith(said):
            logits = logits.copy()
            logits[[*self.answer, fake_model.EOS][len(said)]] = 100.0
        return logits
