"""Conversations as strict templates take them: what a template needs, and that nothing is lost by it."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.chat.needs import found_needs
from pyllmcancel.chat.order import STEPS, Message, arranged
from pyllmcancel.errors import InvalidRequestError

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
LATE = {"role": "developer", "content": "Mode: plan."}
LONG = "call_0123456789abcdefghijklmn"


def calls(*ids: str, **fields: Any) -> dict[str, Any]:
    made = [{"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": made} | fields


def result(call_id: str, text: str = "seen") -> dict[str, Any]:
    found = {"role": "tool", "content": text}
    return found | {"tool_call_id": call_id} if call_id else found


@pytest.mark.parametrize(
    ("step", "messages", "expected"),
    [
        ("one_system", [SYSTEM, LATE, USER], [SYSTEM | {"content": "Be brief.\n\nMode: plan."}, USER]),
        ("no_late_system", [SYSTEM, LATE, USER, LATE], [SYSTEM, LATE, USER, LATE | {"role": "user"}]),
        ("no_system", [SYSTEM, USER, LATE], [SYSTEM | {"role": "user"}, USER, LATE | {"role": "user"}]),
        ("joined_turns", [SYSTEM, USER, USER, ANSWER], [SYSTEM, USER | {"content": "hello\n\nhello"}, ANSWER]),
        ("joined_turns", [USER, ANSWER, calls("a")], [USER, calls("a", content="hi")]),
        ("joined_turns", [calls("a"), ANSWER], [calls("a"), ANSWER]),
        ("user_first", [SYSTEM, ANSWER], [SYSTEM, USER | {"content": ""}, ANSWER]),
        ("user_first", [SYSTEM], [SYSTEM, USER | {"content": ""}]),
        ("user_first", [SYSTEM, USER], [SYSTEM, USER]),
        ("text_in_result", [calls("a"), result("a"), USER, USER], [calls("a"), result("a", "seen\n\nhello\n\nhello")]),
        ("no_empty_answer", [USER, ANSWER | {"content": " "}, USER], [USER, USER]),
        ("no_empty_answer", [USER, ANSWER | {"content": ""}], [USER, ANSWER | {"content": ""}]),
    ],
)
def test_a_step(step: str, messages: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert arranged(messages, [step]) == expected


def test_results_stand_behind_their_calls() -> None:
    talk = [calls("a", "b"), USER, result("b", "2"), ANSWER, result("a", "1")]
    assert arranged(talk, ["answered_calls"]) == [calls("a", "b"), result("b", "2"), result("a", "1"), USER, ANSWER]


def test_a_call_that_nobody_answered_has_an_empty_result_once_the_conversation_went_on() -> None:
    (_, answer, _) = arranged([calls("a"), USER], ["answered_calls"])
    assert answer == {"role": "tool", "tool_call_id": "a", "name": "look", "content": ""}
    assert arranged([USER, calls("a")], ["answered_calls"]) == [USER, calls("a")]


def test_a_result_without_a_call_is_told_by_the_user() -> None:
    told = {"role": "user", "content": "<tool_response>\nseen\n</tool_response>"}
    assert arranged([result("a"), USER], ["answered_calls"]) == [told, USER]
    assert arranged([calls("a"), result("a"), result("a")], ["answered_calls"])[2] == told


@pytest.mark.parametrize("ids", [("a", "b"), ("", ""), ("a", "a"), ("x", "y")], ids=str)
def test_calls_can_stand_alone_each_before_its_result(ids: tuple[str, str]) -> None:
    named = ids != ("x", "y")
    asked = calls(*(ids if named else ("a", "b")), content="I look.")
    found = arranged([USER, asked, result(ids[0], "1"), result(ids[1], "2"), USER], ["single_calls"])
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant", "tool", "user"]
    assert [message["content"] for message in found] == ["hello", "I look.", "1", "", "2", "hello"]
    assert [message["tool_calls"] for message in found if "tool_calls" in message] == [
        [call] for call in asked["tool_calls"]
    ]


def test_ids_become_short_and_are_the_same_in_every_turn() -> None:
    talk = [calls(LONG, "abcdef123"), result(LONG), result("abcdef123")]
    found = arranged(talk, ["short_ids"])
    short, kept = (call["id"] for call in found[0]["tool_calls"])
    assert re.fullmatch("[0-9A-Za-z]{9}", short)
    assert kept == "abcdef123"
    assert [message["tool_call_id"] for message in found[1:]] == [short, kept]
    assert arranged([*talk, USER, calls(LONG)], ["short_ids"])[:3] == found


def test_calls_without_ids_get_different_ones_which_their_results_share() -> None:
    found = arranged([calls("", ""), result(""), result(""), calls(""), result("")], ["known_ids"])
    called = [call["id"] for message in found for call in message.get("tool_calls", [])]
    assert [message["tool_call_id"] for message in found if message["role"] == "tool"] == called
    assert len(set(called)) == 3


# -- whole conversations ----------------------------------------------------------------------------------------------

Turns = list[list[dict[str, Any]]]


@st.composite
def conversations(draw: st.DrawFn) -> Turns:
    """The new messages of each turn: messages of the others', then what the assistant says or calls."""
    numbers = iter(range(10_000))

    def said(role: str) -> dict[str, Any]:
        return {"role": role, "content": f"text{next(numbers):04d}"}

    instructions = [said(role) for role in draw(st.lists(st.sampled_from(["system", "developer"]), max_size=2))]
    turns: Turns = []
    waiting: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        roles = st.lists(st.sampled_from(["user", "user", "system", "developer"]), max_size=3)
        others = [said(role) for role in draw(roles)]
        for call_id in waiting:
            if draw(st.integers(0, 5)):
                others.insert(draw(st.integers(0, len(others))), said("tool") | {"tool_call_id": call_id})
        waiting = [f"call_{next(numbers):04d}" for _ in range(draw(st.integers(0, 3)))]
        answer = said("assistant") | ({"tool_calls": calls(*waiting)["tool_calls"]} if waiting else {})
        turns.append([*([] if turns else instructions), *others, answer])
    return turns


needs = st.one_of(st.just(frozenset(STEPS)), st.frozensets(st.sampled_from(list(STEPS))))


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [text for message in messages for text in re.findall(r"text\d{4}", message["content"])]


@given(conversations(), needs)
def test_no_text_is_lost_or_doubled_whatever_a_template_needs(turns: Turns, needed: frozenset[str]) -> None:
    talk = [message for turn in turns for message in turn]
    found = arranged(talk, needed)
    assert sorted(texts(found)) == sorted(texts(talk))
    asked = [call["function"] for message in found for call in message.get("tool_calls", [])]
    assert asked == [call["function"] for message in talk for call in message.get("tool_calls", [])]


@given(conversations(), needs)
def test_what_a_turn_was_asked_stays_the_beginning_of_the_next(turns: Turns, needed: frozenset[str]) -> None:
    whole = arranged([message for turn in turns for message in turn], needed)
    for n in range(len(turns)):
        *asked, _answer = [message for turn in turns[: n + 1] for message in turn]
        if asked and asked[-1]["role"] != "assistant":
            begun = arranged(asked, needed)
            assert whole[: len(begun)] == begun


@given(conversations())
def test_a_template_that_needs_every_step_gets_turns_that_alternate(turns: Turns) -> None:
    found = arranged([message for turn in turns for message in turn], STEPS)
    others = [message["role"] for message in found if message["role"] != "tool" and "tool_calls" not in message]
    assert others[0] == "user"
    assert set(others) <= {"user", "assistant"}
    assert not any(before == after for before, after in pairwise(others))


# -- what templates need -----------------------------------------------------------------------------------------------


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
