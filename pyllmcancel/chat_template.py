"""The model's own chat template, rendered in Jinja2's sandbox: templates come with model files, from anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pyllmcancel.errors import InvalidRequestError

# For models that bring no template: the ChatML form that most fine-tunes understand.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTemplate:
    """A compiled chat template.

    Parameters
    ----------
    source
        Jinja2, as found in a model's metadata; None for ChatML.
    bos, eos
        Texts of the model's special tokens, which templates may insert.

    Raises
    ------
    InvalidRequestError
        The template itself cannot be compiled.
    """

    def __init__(self, source: str | None, bos: str = "", eos: str = "") -> None:
        self.source = source or CHATML
        self._variables = {"bos_token": bos, "eos_token": eos}
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = time.strftime
        try:
            self._template = environment.from_string(self.source)
        except TemplateError as error:
            raise InvalidRequestError(f"the chat template cannot be compiled: {error}", "chat_template") from error

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The prompt text of a conversation.

        Raises
        ------
        InvalidRequestError
            The template refuses these messages (an unknown role, say), fails on them, or does what the sandbox forbids.
        """
        merged = {"add_generation_prompt": True} | self._variables | variables
        try:
            return self._template.render(messages=messages, **merged)
        except Exception as error:
            # Whatever it is: the template, which came with the model, did it to these messages.
            raise InvalidRequestError(f"the chat template refuses these messages: {error}", "messages") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja2's own filter escapes for HTML, which would reach the model.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
