"""The texts that a template refuses or omits are found by rendering: here templates are functions."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pyllmcancel.chat.needs import found_needs
from pyllmcancel.chat.order import Message
from pyllmcancel.errors import InvalidRequestError


def written(message: Message, most_calls: int) -> str:
    shown = message.get("tool_calls", [])[:most_calls]
    calls = "".join(f"<call {call['function']['arguments']}>" for call in shown)
    return f"[{message['role']}]{message['content']}{calls}"


Rule = Callable[[Message | None, Message], bool]
"""Decides by a message, and the one before it, whether something is done to it."""


def never(_before: Message | None, _message: Message) -> bool:
    return False


@dataclass
class Template:
    """Takes the messages that `refuses` does not name, and writes those that `omits` does not name."""

    refuses: Rule = never
    omits: Rule = never
    system_first: bool = False
    most_calls: int = 9

    def render(self, messages: list[Message]) -> str:
        ordered = sorted(messages, key=lambda message: self.system_first and message["role"] != "system")
        pairs = list(zip([None, *messages], ordered, strict=False))
        if any(self.refuses(before, message) for before, message in pairs):
            raise InvalidRequestError("no", "messages")
        return "".join(
            written(message, self.most_calls) for before, message in pairs if not self.omits(before, message)
        )


def late_system(before: Message | None, message: Message) -> bool:
    return message["role"] == "system" and before is not None and before["role"] != "system"


def second_system(before: Message | None, message: Message) -> bool:
    return before is not None and before["role"] == message["role"] == "system"


def any_system(_before: Message | None, message: Message) -> bool:
    return bool(message["role"] == "system")


def empty_answer(_before: Message | None, message: Message) -> bool:
    return message["role"] == "assistant" and not (message["content"] or "tool_calls" in message)


def same_role(before: Message | None, message: Message) -> bool:
    if message["role"] == "tool" or "tool_calls" in message:
        return False
    return before is not None and bool(message["role"] == before["role"])


def answer_first(before: Message | None, message: Message) -> bool:
    return message["role"] == "assistant" and (before is None or before["role"] == "system")


def text_after_result(before: Message | None, message: Message) -> bool:
    return before is not None and before["role"] == "tool" and message["role"] == "user"


def stray_result(before: Message | None, message: Message) -> bool:
    return message["role"] == "tool" and (before is None or not (before["role"] == "tool" or "tool_calls" in before))


def ids(message: Message) -> list[Any]:
    called = [call.get("id") for call in message.get("tool_calls", [])]
    return [*called, message.get("tool_call_id")] if message["role"] == "tool" else called


def missing_ids(_before: Message | None, message: Message) -> bool:
    return not all(ids(message))


def long_ids(_before: Message | None, message: Message) -> bool:
    return any(len(call_id or "") != 9 for call_id in ids(message))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (Template(), []),
        (Template(late_system), ["no_late_system"]),
        (Template(omits=late_system), ["no_late_system"]),
        (Template(system_first=True), ["no_late_system"]),
        (Template(omits=second_system), ["one_system"]),
        (Template(any_system), ["no_late_system", "no_system"]),
        (Template(empty_answer), ["no_empty_answer"]),
        (Template(same_role), ["joined_turns", "one_system"]),
        (Template(answer_first), ["user_first"]),
        (Template(text_after_result), ["text_in_result"]),
        (Template(stray_result), ["answered_calls"]),
        (Template(most_calls=1), ["single_calls"]),
        (Template(missing_ids), ["known_ids"]),
        (Template(long_ids), ["known_ids", "short_ids"]),
    ],
)
def test_a_template_needs_what_makes_it_take_and_write_everything(template: Template, expected: list[str]) -> None:
    assert found_needs(template.render) == expected


def test_a_template_that_refuses_everything_needs_nothing() -> None:
    def render(_messages: list[Message]) -> str:
        raise InvalidRequestError("no", "messages")

    assert found_needs(render) == []


def test_a_slow_machine_finds_the_same_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", itertools.count(0.0, 100.0).__next__)
    assert found_needs(Template(any_system).render) == ["no_late_system", "no_system"]
