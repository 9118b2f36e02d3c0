"""The model's chat template, with llama.cpp's chat layer: it makes prompts of conversations, and says how answers are
parsed.

A template is a program that comes with the model's file, and so is not trusted. Jinja2's sandbox limits neither time
nor memory, so templates run in another process that has limits. A conversation that takes too long ends that process,
and nothing else.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from pyllmcancel.chat.grammar import narrowed
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.helper import Helper, HelperEnded, HelperError
from pyllmcancel.pausing import Pause, no_pause

logger = logging.getLogger("pyllmcancel.server")

# For models without a template: the ChatML form that most fine-tunes understand.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RETRY_SECONDS = 60.0  # until a template is compiled again that lacked time or memory
CPU_SECONDS = 1.0  # for all messages of a conversation; usual ones take a millisecond


@dataclass(frozen=True, slots=True)
class Thinking:
    """The texts around a model's reasoning; `begun` if the prompt ends inside it, `over` if it ends after it.

    `call_head` is a regular expression. Where the text before `start` ends with it, `start` opens a call's arguments.
    """

    start: str
    ends: tuple[str, ...]
    begun: bool
    over: bool = False
    call_head: str = ""


# Keyed by the beginning of reasoning. gpt-oss writes a call's recipient, and then the same mark as before its
# reasoning.
CALL_HEADS = {"<|channel|>analysis<|message|>": r" to=[^\s<]+"}


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The prompt of a conversation, and the form of its answer."""

    prompt: str  # the text that the model continues
    generation_prompt: str  # the end of the prompt, which opens the answer
    parser: bytes  # the JSON for a `_native.ChatParser`
    grammar: str  # the GBNF of tool calls; it begins with the generation prompt, unless it waits
    triggers: tuple[tuple[str, str], ...]  # the kind and value of each trigger of a grammar that waits
    preserved_tokens: tuple[str, ...]  # control tokens that the parser must see in the text
    stops: tuple[str, ...]  # the texts that end the answer
    thinking: Thinking | None  # None for a model that does not reason, or was switched off
    unenforced: tuple[tuple[str, ...], ...] = ()  # by tool, the paths that the grammar lacks; "": the whole schema
    unenforced_of_answer: tuple[str, ...] = ()  # and of the answer's own schema


class ChatTemplate:
    """One model's template. Any thread may call any method. The first call starts the process, which takes a moment.

    `source` is the Jinja source in a model's metadata, None for ChatML; `bos` and `eos` are special tokens' texts. With
    tools `tool_use_source` is used: if only one of both can be compiled, the other's conversations are refused. Without
    `jinja` the template is recognised as one of llama.cpp's, which know neither tools nor variables. Every method
    raises InvalidRequestError if no template can be compiled.
    """

    def __init__(
        self, source: str | None, bos: str = "", eos: str = "", *, tool_use_source: str = "", jinja: bool = True
    ) -> None:
        self.is_default = not source
        self.source = source or CHATML
        self._helper = Helper("open_template", self.source, bos, eos, tool_use_source, jinja, cpu_seconds=CPU_SECONDS)
        self._lock = threading.Lock()
        self._opened: dict[str, Any] | None = None
        self._refused: str | None = None  # why the template is not rendered
        self._refused_until = 0.0

    def begin(self) -> None:
        """Start the process; `prepare` waits until it can be used."""
        self._helper.begin()

    def prepare(self) -> None:
        """Start the process, and have the template compiled."""
        with self._lock:
            if self._opened is None and time.monotonic() >= self._refused_until:
                self._open()
            refused = self._refused
        if refused is not None:
            raise InvalidRequestError(refused, "chat_template")

    def _open(self) -> None:
        self._refused = None
        try:
            self._opened = self._helper.open()
            for purpose, why in self._opened["refused"].items():
                logger.error(
                    "the chat template for %s cannot be compiled: %s; such conversations will be refused", purpose, why
                )
        except HelperError as error:
            self._refused = f"the chat template cannot be compiled: {error}"
            # One that was ended may find the machine less busy later.
            self._refused_until = time.monotonic() + RETRY_SECONDS if isinstance(error, HelperEnded) else inf
            logger.error("%s; chats will be refused", self._refused)

    @property
    def caps(self) -> Mapping[str, bool]:
        """The capabilities of the template, by llama.cpp's names."""
        caps: dict[str, bool] = self._known("caps")
        return caps

    @property
    def wraps_content(self) -> bool:
        """True if a model writes more than reasoning before the text of its answer."""
        return bool(self._known("wraps_content"))

    @property
    def switches(self) -> frozenset[str]:
        """The variables that switch or limit the model's reasoning."""
        found = {"reasoning_effort"} if self.caps["supports_reasoning_effort"] else set()
        return frozenset(found | {"enable_thinking"}) if "thinking" in self.source else frozenset(found)

    def _known(self, name: str) -> Any:
        self.prepare()
        assert self._opened is not None
        return self._opened[name]

    def knows_role(self, role: str) -> bool:
        """Return whether the template names a role. A template that writes out any input knows only the usual roles."""
        return f'"{role}"' in self.source or f"'{role}'" in self.source

    def apply(self, inputs: Mapping[str, Any], pause: Pause = no_pause) -> ChatForm:
        """Return the prompt of a conversation, and the form of its answer; `inputs` as for
        `_native.ChatTemplate.apply`.

        `pause` is called now and then, and ends the attempt by raising. InvalidRequestError: the template refuses these
        messages (for an unknown role, for example), or takes too long.
        """
        self._check_compiled("tools" if inputs.get("tools") else "chats")
        try:
            found = self._rendered(inputs, pause)
        except HelperError as error:
            why = "cannot be rendered" if isinstance(error, HelperEnded) else "refuses these messages"
            raise InvalidRequestError(f"the chat template {why}: {error}", "messages") from error
        return chat_form(inputs, found)

    def _check_compiled(self, purpose: str) -> None:
        why = self._known("refused").get(purpose)
        if why is not None:
            param = "tools" if purpose == "tools" else "chat_template"
            raise InvalidRequestError(f"the chat template for {purpose} cannot be compiled: {why}", param)

    def _rendered(self, inputs: Mapping[str, Any], pause: Pause) -> Any:
        try:
            return self._helper.call("apply_template", inputs, pause=pause)
        except HelperEnded:
            if not inputs.get("tools") or not inputs.get("enforces_schemas", True):
                raise
        # The grammar of the tools' schemas may have taken too long.
        return self._helper.call("apply_template", {**inputs, "enforces_schemas": False}, pause=pause)

    def close(self) -> None:
        """End the process. Idempotent."""
        self._helper.close()


def chat_form(inputs: Mapping[str, Any], found: Mapping[str, Any]) -> ChatForm:
    """Make the form from the inputs and the result of `_native.ChatTemplate.apply`."""
    triggers = [(trigger["type"], trigger["value"]) for trigger in found["grammar_triggers"]]
    form = {key: found[key] for key in ("format", "parser", "generation_prompt")}
    # The client already has the part of a continued answer that is in the prompt.
    form["is_continuation"] = bool(inputs.get("continue_final_message"))
    return ChatForm(
        prompt=found["prompt"],
        generation_prompt=found["generation_prompt"],
        parser=json.dumps(form).encode(),
        grammar=narrowed(
            found["grammar"],
            required=inputs.get("tool_choice") == "required",
            parallel=inputs.get("parallel_tool_calls", True),
        ),
        triggers=tuple(triggers) if found["grammar_lazy"] else (),
        preserved_tokens=tuple(found["preserved_tokens"]),
        stops=tuple(found["additional_stops"]),
        thinking=thinking_of(found),
        unenforced=tuple(map(tuple, found.get("unenforced", ()))),
        unenforced_of_answer=tuple(found.get("unenforced_of_answer", ())),
    )


def thinking_of(found: Mapping[str, Any]) -> Thinking | None:
    """Return the texts around reasoning; None if no reasoning can come."""
    start, ends = found["thinking_start_tag"], tuple(found["thinking_end_tags"])
    if not (found["supports_thinking"] and start and ends):
        return None
    _, begun, behind = found["generation_prompt"].rpartition(start)
    # Some templates write the complete reasoning, even without a generation prompt.
    over = any(end in behind for end in ends) if begun else found["prompt"].rstrip().endswith(ends)
    return Thinking(start, ends, bool(begun) and not over, over, CALL_HEADS.get(start, ""))
