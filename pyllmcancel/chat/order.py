"""Rearrange conversations for strict chat templates.

Agents send system messages between turns, several questions in a row, and texts after the results of tools. Some
templates refuse these, others omit texts silently. Each step below changes one such form; a template gets only the
steps that it needs, which `needs` finds out. No step loses a text, and none moves a later one to the front, so that the
prompt of one turn remains the beginning of the next one's.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

Message = dict[str, Any]
Step = Callable[[list[Message]], list[Message]]

INSTRUCTING = ("system", "developer")
BETWEEN = "\n\n"  # between texts that become one
ID_LENGTH = 9


def arranged(messages: list[Message], needs: Collection[str]) -> list[Message]:
    """Return the messages after the steps of these names. The given messages are not changed."""
    for name, step in STEPS.items():
        if name in needs:
            messages = step(messages)
    return messages


def one_system(messages: list[Message]) -> list[Message]:
    """Join the instructions at the beginning."""
    n_first = _instructions(messages)
    return [*_joined(messages[:n_first], lambda _before, _message: True), *messages[n_first:]]


def no_late_system(messages: list[Message]) -> list[Message]:
    """Turn later instructions into the user's messages."""
    n_first = _instructions(messages)
    return [*messages[:n_first], *map(_as_users, messages[n_first:])]


def no_system(messages: list[Message]) -> list[Message]:
    """Turn all instructions into the user's messages."""
    return list(map(_as_users, messages))


def answered_calls(messages: list[Message]) -> list[Message]:
    """Put results, or empty ones, right after their calls; results without a call become the user's text."""
    found: list[Message] = []
    groups = _groups(messages)
    for index, (message, results) in enumerate(groups):
        if message["role"] == "tool":
            found.append({"role": "user", "content": f"<tool_response>\n{_text(message)}\n</tool_response>"})
            continue
        found += [message, *results]
        # A conversation may end with calls whose results do not exist yet.
        if results or index < len(groups) - 1:
            found += _no_results(message, results)
    return found


def single_calls(messages: list[Message]) -> list[Message]:
    """Give each call a message of its own, followed by its result."""
    found: list[Message] = []
    for message, results in _groups(messages):
        calls = _calls(message)
        if len(calls) < 2:
            found += [message, *results]
            continue
        later = {"role": message["role"], "content": ""}
        answers = _by_call(calls, results)
        for index, call in enumerate(calls):
            found.append((message if index == 0 else later) | {"tool_calls": [call]})
            found += answers[index]
    return found


def no_empty_answer(messages: list[Message]) -> list[Message]:
    """Omit empty answers. The last one may be there to be continued."""
    return [message for message in messages[:-1] if not _is_empty_answer(message)] + messages[-1:]


def text_in_result(messages: list[Message]) -> list[Message]:
    """Append the user's text right after a result to that result."""
    return _joined(messages, lambda before, message: before["role"] == "tool" and message["role"] == "user")


def joined_turns(messages: list[Message]) -> list[Message]:
    """Join neighbours of one role. A message with calls is complete: a text after the calls is another message."""

    def belong(before: Message, message: Message) -> bool:
        return before["role"] == message["role"] in ("user", "assistant") and not _calls(before)

    return _joined(messages, belong)


def user_first(messages: list[Message]) -> list[Message]:
    """Put an empty message of the user's before an answer without a question."""
    n_first = _instructions(messages)
    if len(messages) > n_first and messages[n_first]["role"] != "assistant":
        return messages
    return [*messages[:n_first], {"role": "user", "content": ""}, *messages[n_first:]]


def known_ids(messages: list[Message]) -> list[Message]:
    """Give calls without an id an id, and their results the same."""
    return _with_ids(messages, lambda call_id: call_id)


def short_ids(messages: list[Message]) -> list[Message]:
    """Replace ids that are not nine letters and digits, by the same ones in every turn, so that prompts stay equal."""
    return _with_ids(messages, lambda call_id: call_id if _is_short(call_id) else short_id(call_id))


# In the order of their application: each step can rely on the earlier ones.
STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        *(one_system, no_late_system, no_system, answered_calls, single_calls, no_empty_answer, text_in_result),
        *(joined_turns, user_first, known_ids, short_ids),
    )
}


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def _is_empty_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not (_text(message).strip() or _calls(message))


def _instructions(messages: list[Message]) -> int:
    """Return how many messages at the beginning are instructions."""
    return next((n for n, message in enumerate(messages) if message["role"] not in INSTRUCTING), len(messages))


def _as_users(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] in INSTRUCTING else message


def _joined(messages: list[Message], belong: Callable[[Message, Message], bool]) -> list[Message]:
    """Return the messages with those that belong together joined into one, which has the fields of the first."""
    runs: list[list[Message]] = []
    for message in messages:
        if runs and belong(runs[-1][0], message):
            runs[-1].append(message)
        else:
            runs.append([message])
    return [run[0] if len(run) == 1 else _one_of(run) for run in runs]


def _one_of(run: list[Message]) -> Message:
    found = run[0] | {"content": BETWEEN.join(filter(None, map(_text, run)))}
    thoughts = [message["reasoning_content"] for message in run if message.get("reasoning_content")]
    if thoughts:
        found["reasoning_content"] = BETWEEN.join(thoughts)
    calls = [call for message in run for call in _calls(message)]
    if calls:
        found["tool_calls"] = calls
    return found


Group = tuple[Message, list[Message]]


def _groups(messages: list[Message]) -> list[Group]:
    """Return each message with the results of its calls; a result without a call is a group by itself."""
    groups: list[Group] = []
    waiting: dict[str, Group] = {}  # the last group that calls by this id
    caller: Group | None = None
    for message in messages:
        if message["role"] == "tool":
            group = waiting.get(message.get("tool_call_id") or "", caller)
            if group is not None and len(group[1]) < len(_calls(group[0])):
                group[1].append(message)
                continue
        group = (message, [])
        groups.append(group)
        if _calls(message):
            caller = group
            waiting |= {call["id"]: group for call in _calls(message) if call.get("id")}
    return groups


def _by_call(calls: list[dict[str, Any]], results: list[Message]) -> list[list[Message]]:
    """Return the results of each call: by its id, else by their order."""
    found: list[list[Message]] = [[] for _ in calls]
    others: list[Message] = []
    places: dict[str, deque[int]] = defaultdict(deque)
    for index, call in enumerate(calls):
        places[call.get("id") or ""].append(index)
    for result in results:
        named = places[result.get("tool_call_id") or ""]
        (found[named.popleft()] if named else others).append(result)
    free = iter([answers for answers in found if not answers])
    for result in others:
        next(free, found[-1]).append(result)
    return found


def _no_results(message: Message, results: list[Message]) -> Iterator[Message]:
    """Return an empty result for each call that has none."""
    calls = _calls(message)
    answers = _by_call(calls, results) if calls else []
    for call, answered in zip(calls, answers, strict=True):
        if not answered:
            yield {"role": "tool", "tool_call_id": call.get("id"), "name": call["function"]["name"], "content": ""}


def _with_ids(messages: list[Message], renamed: Callable[[str], str]) -> list[Message]:
    found: list[Message] = []
    waiting: dict[str, None] = {}  # ids of calls that are not answered yet, in their order
    n_calls = 0
    for message in messages:
        added: Message = {}
        if calls := _calls(message):
            ids = [renamed(call.get("id") or short_id(str(n))) for n, call in enumerate(calls, n_calls)]
            n_calls += len(calls)
            waiting = dict.fromkeys(ids)
            added["tool_calls"] = [call | {"id": call_id} for call, call_id in zip(calls, ids, strict=True)]
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            call_id = renamed(given) if given else next(iter(waiting), short_id(""))
            waiting.pop(call_id, None)
            added["tool_call_id"] = call_id
        found.append(message | added)
    return found


def _is_short(call_id: str) -> bool:
    return len(call_id) == ID_LENGTH and call_id.isascii() and call_id.isalnum()


def short_id(call_id: str) -> str:
    """Return an id in the form that strict templates take, which depends on the given one only."""
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]
