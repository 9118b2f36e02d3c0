"""Find out what a chat template refuses, or omits silently, by rendering small conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyllmcancel.chat.order import Message, arranged
from pyllmcancel.errors import InvalidRequestError

Render = Callable[[list[Message]], str]

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {}}},
}
MARK = "4711"  # in each text, so that no template contains it by itself
LONG_IDS = ("call_0123456789abcdefghijklmn", "call_abcdefghijklmn0123456789")  # in OpenAI's form
IDS = ("call00001", "call00002")


class Rendering(NamedTuple):
    """The outcome of rendering a conversation; the better outcome is the greater one."""

    is_taken: bool
    n_missing: int  # the number of missing texts, negated
    is_in_order: bool

    @property
    def is_whole(self) -> bool:
        return self == (True, 0, True)


def found_needs(render: Render) -> list[str]:
    """Return the names of the steps of `order` without which this template does worse.

    All are tried, however slow the template is: a slower machine must not get other prompts. The limits of the helper
    process's opening call end what takes too long. `render` raises InvalidRequestError if the template refuses.
    """
    needs: list[str] = []
    for step, conversations in TRIED.items():
        if _helps(step, conversations, needs, render):
            needs.append(step)
    return needs


def _helps(step: str, conversations: Sequence[list[Message]], needs: Sequence[str], render: Render) -> bool:
    """Return whether the step improves the result of one conversation, and worsens none."""
    found = [rendering(conversation, arranged(conversation, needs), render) for conversation in conversations]
    if all(each.is_whole for each in found):
        return False  # as for most templates
    changed = [
        rendering(conversation, arranged(conversation, [*needs, step]), render) for conversation in conversations
    ]
    return changed != found and all(after >= before for before, after in zip(found, changed, strict=True))


def rendering(conversation: list[Message], messages: list[Message], render: Render) -> Rendering:
    """Return the result for the conversation if its template gets these messages."""
    try:
        prompt = render(messages)
    except InvalidRequestError:
        return Rendering(False, 0, False)
    # Many templates omit a text beside calls on purpose, and no step changes that.
    texts = [str(message["content"]) for message in conversation if message["content"] and "tool_calls" not in message]
    calls = [call for message in conversation for call in message.get("tool_calls", ())]
    places = [place for text in texts if (place := prompt.find(text)) >= 0]
    n_calls = sum(call["function"]["arguments"].split('"')[3] in prompt for call in calls)
    return Rendering(True, len(places) + n_calls - len(texts) - len(calls), places == sorted(places))


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": f"{text} {MARK}"}


_system, _user, _answer = (partial(_said, role) for role in ("system", "user", "assistant"))


def _calls(*ids: str, text: str = "") -> Message:
    calls = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{MARK}{number}"}}'}}
        for number, each in enumerate(ids)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _result(text: str, call_id: str = IDS[0]) -> Message:
    found: dict[str, Any] = {"role": "tool", "name": "look", "content": f"{text} {MARK}"}
    return found | {"tool_call_id": call_id} if call_id else found


ONE = IDS[0]
EMPTY = {"role": "assistant", "content": ""}
TALK = [_user("one"), _answer("two"), _user("three")]
# The conversations that each step is tried on, in the order of the trials: a later step may need an earlier one.
TRIED: Mapping[str, Sequence[list[Message]]] = {
    "known_ids": [[_user("one"), _calls(""), _result("two", "")]],
    "short_ids": [[_user("one"), _calls(LONG_IDS[0]), _result("two", LONG_IDS[0])]],
    "single_calls": [
        [_user("one"), _calls(*IDS), _result("two", IDS[0]), _result("three", IDS[1])],
        [_user("one"), _calls(*IDS, text="beside"), _result("two", IDS[0]), _result("three", IDS[1])],
    ],
    "joined_turns": [
        [_user("one"), _user("two")],
        [_system("zero"), _user("one"), _user("two"), _answer("three"), _user("four"), _user("five")],
        [_user("one"), _answer("two"), _answer("three"), _user("four")],
    ],
    "user_first": [
        [_answer("one"), _user("two")],
        [_system("zero"), _answer("one"), _user("two")],
        [_system("zero")],
    ],
    "text_in_result": [
        [_user("one"), _calls(ONE), _result("two"), _user("three")],
        [_user("one"), _calls(ONE), _result("two"), _user("three"), _answer("four"), _user("five")],
    ],
    "answered_calls": [
        [_user("one"), _calls(ONE), _user("two"), _result("three")],
        [_user("one"), _calls(ONE), _user("two"), _answer("three"), _user("four")],
        [_result("one"), _user("two")],
        [_system("zero"), _user("one"), _answer("two"), _result("three"), _user("four")],
    ],
    "one_system": [[_system("zero"), _system("one"), _user("two")]],
    "no_late_system": [
        [_user("one"), _answer("two"), _system("three"), _user("four")],
        [_user("one"), _system("two")],
        [_user("one"), _calls(ONE), _result("two"), _system("three")],
        [_system("zero"), *TALK, _system("four")],
    ],
    "no_system": [
        [_system("zero"), _user("one")],
        [_system("zero"), *TALK],
        [_system("zero"), _user("one"), _calls(ONE), _result("two")],
        [_system("zero")],
    ],
    "no_empty_answer": [[_user("one"), EMPTY, _user("two")]],
}
