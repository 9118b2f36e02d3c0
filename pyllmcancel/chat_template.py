"""The model's own chat template, rendered in Jinja2's sandbox: templates come with model files, from anywhere."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pyllmcancel.errors import InvalidRequestError

# For models that bring no template: the ChatML form that most fine-tunes understand.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# What callers may not replace: a template sees each once.
OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
NEEDLE = "needle"


class ChatTemplate:
    """A compiled chat template.

    Parameters
    ----------
    source
        Jinja2, as found in a model's metadata; None for ChatML.
    bos, eos
        Texts of the model's special tokens, which templates may insert.

    Attributes
    ----------
    variables
        Names that the template uses and does not set itself.
    object_arguments
        Whether it wants the arguments of a past tool call as an object, and not as the text that OpenAI's clients send.

    Raises
    ------
    InvalidRequestError
        The template itself cannot be compiled.
    """

    def __init__(self, source: str | None, bos: str = "", eos: str = "") -> None:
        self.source = source or CHATML
        # Templates are written for a renderer that sets these two always.
        self._variables: dict[str, Any] = {"bos_token": bos, "eos_token": eos, "tools": None, "documents": None}
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = time.strftime
        try:
            self._template = environment.from_string(self.source)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(self.source)))
        except Exception as error:
            # Jinja2 descends as deep as the template is nested, and computes what it finds constant.
            words = error if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            raise InvalidRequestError(f"the chat template cannot be compiled: {words}", "chat_template") from error
        self.object_arguments = self.knows_tools and self._wants_objects()

    @property
    def knows_tools(self) -> bool:
        return "tools" in self.variables

    def knows_role(self, role: str) -> bool:
        """Whether the template speaks of a role. One that writes out whatever it gets knows none but the usual."""
        return f'"{role}"' in self.source or f"'{role}'" in self.source

    def accepts(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it renders messages like these."""
        try:
            self.render(messages)
        except InvalidRequestError:
            return False
        return True

    def _wants_objects(self) -> bool:
        """Found by trying: a template that expects the other kind fails, quotes twice, or writes it as Python does."""
        for arguments in ({NEEDLE: "x"}, json.dumps({NEEDLE: "x"})):
            function = {"name": "f", "arguments": arguments}
            call = {"id": "123456789", "type": "function", "function": function}
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "x", "tool_call_id": "123456789", "name": "f"},
            ]
            try:
                text = self.render(messages)
            except InvalidRequestError:
                continue
            if re.search(rf'[^\\]"{NEEDLE}"', text):
                return isinstance(arguments, dict)
        return True

    def render(
        self, messages: Sequence[Mapping[str, Any]], pause: Callable[[], None] = lambda: None, /, **variables: Any
    ) -> str:
        """The prompt text of a conversation.

        Parameters
        ----------
        pause
            What it raises ends the rendering; a rendering in this process does not ask.

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
            words = "out of memory" if isinstance(error, MemoryError) else error
            raise InvalidRequestError(f"the chat template refuses these messages: {words}", "messages") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own filter escapes for HTML, which would reach the model.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
