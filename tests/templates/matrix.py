"""The outcome of a form in a template: refused, or rendered with what it says, in its order."""

import json
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.anthropic.body import MessagesBody
from pyllmcancel.server.anthropic.translation import chat_of
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.turn import template_messages
from pyllmcancel.server.responses.body import ResponsesBody
from tests.templates.bodies import MESSAGES, RESPONSES, Form

TEMPLATES = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "models" / "templates"
NAMES = tuple(sorted(path.stem for path in TEMPLATES.glob("*.jinja")))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a form."""

    refused: str = ""  # the template's words
    lost: tuple[str, ...] = ()  # texts that are not in the prompt
    moved: tuple[str, ...] = ()  # texts that stand before earlier ones
    left_out: tuple[str, ...] = ()  # calls, and texts beside them, that the template's author chose not to write

    @property
    def kind(self) -> str:
        """The gravest of it."""
        return next((name for name in ("refused", "lost", "moved", "left_out") if getattr(self, name)), "whole")

    def __str__(self) -> str:
        found = getattr(self, self.kind, "")
        return f"{self.kind}: {found if isinstance(found, str) else ' '.join(found)}"


def chat_body(form: Form) -> ChatBody:
    """The chat that a body of any dialect asks for."""
    if form.path == MESSAGES:
        return chat_of(MessagesBody.model_validate(form.body))
    if form.path == RESPONSES:
        responses = ResponsesBody.model_validate(form.body)
        return responses.chat(responses.table(), responses.items)
    return ChatBody.model_validate(form.body)


@cache
def opened(name: str) -> Functions:
    """A template of llama.cpp's, as the helper process has it."""
    functions = Functions()
    functions.open_template((TEMPLATES / f"{name}.jinja").read_text("utf-8"), "<s>", "</s>", "")
    return functions


def prompt_of(name: str, body: ChatBody, *, as_sent: bool) -> str:
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or []]
    inputs: dict[str, Any] = {"messages": template_messages(body.messages), "tools": tools}
    functions = opened(name)
    return json.loads((functions._render if as_sent else functions.apply_template)(inputs))["prompt"]


def outcome(name: str, form: Form, *, as_sent: bool = False) -> Outcome:
    """Return the outcome of the form with this template of llama.cpp's; `as_sent`: without the steps that it needs."""
    try:
        prompt = prompt_of(name, chat_body(form), as_sent=as_sent)
    except InvalidRequestError as error:
        return Outcome(refused=str(error).strip().splitlines()[-1])
    said = dict.fromkeys(re.findall(r"(?:word|value|aside)\d\d", json.dumps(form.body)))
    missing = [word for word in said if word not in prompt]
    texts = [word for word in said if word.startswith("word") and word not in missing]
    moved = [after for before, after in pairwise(texts) if prompt.find(after) < prompt.find(before)]
    lost = tuple(word for word in missing if word.startswith("word"))
    return Outcome(lost=lost, moved=tuple(moved), left_out=tuple(word for word in missing if word not in lost))
