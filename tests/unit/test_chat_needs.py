"""The texts that a template refuses or omits are found by rendering: here templates are functions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pyllmcancel.chat.needs import found_needs
from pyllmcancel.chat.order import Message
from pyllmcancel.errors import InvalidRequestError


def written(message: Message) -> str:
    calls = "".join(f"<call {call['function']['arguments']}>" for call in message.get("tool_calls", []))
    return f"[{message['role']}]{message['content']}{calls}"


class Template:
    """Takes what `refuses` does not find, and writes what `leaves_out` does not."""

    def refuses(self, _before: Message | None, _message: Message) -> bool:
        return False

    def leaves_out(self, _before: Message | None, _message: Message) -> bool:
        return False

    def order(self, messages: list[Message]) -> list[Message]:
        return messages

    def render(self, messages: list[Message]) -> str:
        pairs = list(zip([None, *messages], self.order(messages), strict=False))
        if any(self.refuses(before, message) for before, message in pairs):
            raise InvalidRequestError("no", "messages")
        return "".join(written(message) for before, message in pairs if not self.leaves_out(before, message))


def is_late_system(before: Message | None, message: Message) -> bool:
    return message["role"] == "system" and before is not None and before["role"] != "system"


class RefusesLateSystem(Template):
    def refuses(self, before: Message | None, message: Message) -> bool:
        return is_late_system(before, message)


class LeavesLateSystemOut(Template):
    def leaves_out(self, before: Message | None, message: Message) -> bool:
        return is_late_system(before, message)


class PutsSystemFirst(Template):
    def order(self, messages: list[Message]) -> list[Message]:
        return sorted(messages, key=lambda message: message["role"] != "system")


class LeavesSecondSystemOut(Template):
    def leaves_out(self, before: Message | None, message: Message) -> bool:
        return before is not None and before["role"] == message["role"] == "system"


class KnowsNoSystem(Template):
    def refuses(self, _before: Message | None, message: Message) -> bool:
        return bool(message["role"] == "system")


class WantsLongerAnswers(Template):
    def refuses(self, _before: Message | None, message: Message) -> bool:
        return message["role"] == "assistant" and not (message["content"] or "tool_calls" in message)


class WantsAlternation(Template):
    def refuses(self, before: Message | None, message: Message) -> bool:
        if message["role"] == "tool" or "tool_calls" in message:
            return False
        return before is not None and bool(message["role"] == before["role"])


class BeginsWithUser(Template):
    def refuses(self, before: Message | None, message: Message) -> bool:
        return message["role"] == "assistant" and (before is None or before["role"] == "system")


class RefusesTextAfterResult(Template):
    def refuses(self, before: Message | None, message: Message) -> bool:
        return before is not None and before["role"] == "tool" and message["role"] == "user"


class RefusesStrayResults(Template):
    def refuses(self, before: Message | None, message: Message) -> bool:
        return message["role"] == "tool" and (
            before is None or not (before["role"] == "tool" or "tool_calls" in before)
        )


class WritesOneCall(Template):
    def render(self, messages: list[Message]) -> str:
        return super().render([m | {"tool_calls": m["tool_calls"][:1]} if "tool_calls" in m else m for m in messages])


def ids(message: Message) -> list[Any]:
    called = [call.get("id") for call in message.get("tool_calls", [])]
    return [*called, message.get("tool_call_id")] if message["role"] == "tool" else called


class WantsIds(Template):
    def refuses(self, _before: Message | None, message: Message) -> bool:
        return not all(ids(message))


class WantsShortIds(Template):
    def refuses(self, _before: Message | None, message: Message) -> bool:
        return any(len(call_id or "") != 9 for call_id in ids(message))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (Template(), []),
        (RefusesLateSystem(), ["no_late_system"]),
        (LeavesLateSystemOut(), ["no_late_system"]),
        (PutsSystemFirst(), ["no_late_system"]),
        (LeavesSecondSystemOut(), ["one_system"]),
        (KnowsNoSystem(), ["no_late_system", "no_system"]),
        (WantsLongerAnswers(), ["no_empty_answer"]),
        (WantsAlternation(), ["joined_turns", "one_system"]),
        (BeginsWithUser(), ["user_first"]),
        (RefusesTextAfterResult(), ["text_in_result"]),
        (RefusesStrayResults(), ["answered_calls"]),
        (WritesOneCall(), ["single_calls"]),
        (WantsIds(), ["known_ids"]),
        (WantsShortIds(), ["known_ids", "short_ids"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Template) else "",
)
def test_a_template_needs_what_makes_it_take_and_write_everything(template: Template, expected: list[str]) -> None:
    assert found_needs(template.render) == expected


def test_a_template_that_refuses_everything_needs_nothing() -> None:
    def render(_messages: list[Message]) -> str:
        raise InvalidRequestError("no", "messages")

    assert found_needs(render) == []


def test_a_slow_machine_finds_the_same_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", itertools.count(0.0, 100.0).__next__)
    assert found_needs(KnowsNoSystem().render) == ["no_late_system", "no_system"]
