"""The constraint on a chat's tokens: reasoning is free, but for its budget; then a text in its form, or a call."""

from typing import Any, cast

import numpy as np
import pytest

from pyllmcancel.chat.guide import ChatConstraint, ChatGuide
from pyllmcancel.chat.template import Thinking, thinking_of
from pyllmcancel.constraints.guidance import Guidance, Guide
from tests.support.fake_model import EOS, Model

THINKING = Thinking("<think>", ("</think>",), begun=False)
BEGUN = Thinking("<think>", ("</think>",), begun=True)
OVER = Thinking("<think>", ("</think>",), begun=False, over=True)
MARK = "<tool_call>\n"
FREE = None
ENDED_BY_CALL = Thinking("<think>", ("</think>", MARK), begun=True)


class SpecialModel(Model):
    """Bytes, as `tokenize` is asked for them here."""

    def tokenize(self, text: Any, **_options: Any) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


MODEL = cast("Any", SpecialModel())


@pytest.fixture(scope="module")
def digit() -> Guide:
    return Guidance(MODEL).compile('start: /[ \\n]*/ ("1" | "2")', "test")


def allowed(constraint: ChatConstraint) -> set[int] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def write(constraint: ChatConstraint, text: str) -> bool:
    """Each byte must be allowed; returns whether the answer is complete."""
    complete = False
    for byte in text.encode():
        may = allowed(constraint)
        assert may is None or byte in may, (text, chr(byte), may)
        complete = constraint.accept(byte)
    return complete


def guide(thinking: Thinking | None = None, text: Guide | None = None, **options: Any) -> ChatConstraint:
    return ChatGuide(MODEL, thinking, text, **options).new()


# (The reasoning, whether the text has a form, options of the guide, what is written, and the bytes that may follow it).
NEXT: dict[str, tuple[Thinking | None, bool, dict[str, Any], str, set[int] | None]] = {
    "reasoning that has begun in the prompt": (BEGUN, True, {}, "", FREE),
    "the text behind reasoning that has begun in the prompt": (BEGUN, True, {}, "hm</think>1", {EOS}),
    "a call instead of the text": (None, True, {"marks": [MARK]}, MARK, FREE),
    "a call instead of reasoning": (THINKING, True, {"marks": [MARK]}, f"{MARK}anything", FREE),
    "a call that ends reasoning": (ENDED_BY_CALL, True, {"marks": [MARK]}, f"hm{MARK}anything", FREE),
    "a budget that says so": (BEGUN, False, {"budget": 2, "message": " Enough."}, "ab Enough.</think>", FREE),
    "no budget at all": (BEGUN, False, {"budget": 0}, "", {*b"<"}),
    "the text behind no budget at all": (BEGUN, False, {"budget": 0}, "</think>", FREE),
    "reasoning whose budget is used up": (THINKING, True, {"budget": 5}, "<think>12345</thin", {*b"k"}),
    "the text behind a budget": (THINKING, True, {"budget": 5}, "<think>12345</think>", {*b" \n12"}),
    "reasoning within its budget": (THINKING, False, {"budget": 12}, "<think>ab</think>any number of words", FREE),
    "a budget behind a character of two bytes": (BEGUN, False, {"budget": 2}, "aé", {*b"<"}),
    "a budget in a character of three bytes": (BEGUN, False, {"budget": 3}, "a€", {*b"<"}),
    "a budget without reasoning": (THINKING, False, {"budget": 1}, "<thin air, and more of it", FREE),
    "reasoning behind a text": (THINKING, False, {"budget": 12}, "Well. <think>abcdefghijkl", {*b"<"}),
    "reasoning behind the half of its mark": (THINKING, False, {"budget": 12}, "<thin<think>abcdefghijkl", {*b"<"}),
    "an answer": (THINKING, True, {}, "", {*b" \n12<"}),
    "half of the mark of reasoning": (THINKING, True, {}, "<", {*b"t"}),
    "reasoning": (THINKING, True, {}, "<think>", FREE),
    "the text behind reasoning": (THINKING, True, {}, "<think>1 < 2, </thinking> is no end</think>\n\n2", {EOS}),
    "a text without reasoning": (THINKING, True, {}, "1", {EOS}),
    "reasoning that is over in the prompt": (OVER, True, {}, "", {*b" \n12"}),
    "a call behind reasoning that is over": (OVER, True, {"marks": ["[call"]}, "", {*b" \n12["}),
    "a text behind reasoning that is over": (OVER, True, {"marks": ["[call"]}, "1", {EOS}),
    "<think> or <tool_call>": (THINKING, True, {"marks": [MARK]}, "<t", {*b"ho"}),
    "a call or a text behind reasoning": (THINKING, True, {"marks": [MARK]}, "<think>hm</think>", {*b" \n12<"}),
    "half of a call's mark": (THINKING, True, {"marks": [MARK]}, "<think>hm</think><", {*b"t"}),
    "a call behind reasoning": (THINKING, True, {"marks": [MARK]}, f"<think>hm</think>{MARK}", FREE),
    "the second reasoning": (THINKING, False, {"budget": 12}, "<think>abcd</think>Well. <think>", {*b"<"}),
    "the third": (THINKING, False, {"budget": 12}, "<think>abcd</think>Well. <think></think>Well. <think>", {*b"<"}),
}


@pytest.mark.parametrize("case", NEXT)
def test_what_may_come_next(digit: Guide, case: str) -> None:
    thinking, formed, options, text, expected = NEXT[case]
    constraint = guide(thinking, digit if formed else None, **options)
    write(constraint, text)
    assert allowed(constraint) == expected


def test_bytes_behind_the_end_in_its_own_token_belong_to_the_text(digit: Guide) -> None:
    class Long(SpecialModel):
        def piece(self, token: int, *, special: bool = False) -> bytes:
            return b"k>\n1" if token == 200 else super().piece(token, special=special)

    constraint = ChatGuide(cast("Any", Long()), BEGUN, digit).new()
    write(constraint, "hm</thin")
    constraint.accept(200)
    assert allowed(constraint) == {EOS}


def test_a_mark_of_reasoning_behind_a_calls_recipient_begins_its_arguments() -> None:
    tags = {"thinking_start_tag": "<|channel|>analysis<|message|>", "thinking_end_tags": ["<|end|>"]}
    prompts = {"generation_prompt": "<|start|>assistant", "prompt": "<|start|>assistant"}
    harmony = thinking_of({"supports_thinking": True} | tags | prompts)
    constraint = guide(harmony, budget=2)
    write(constraint, '<|start|>assistant to=functions.get_weather<|channel|>analysis<|message|>{"days": 1}')
    assert allowed(constraint) is FREE
    write(constraint, "<|start|>assistant<|channel|>analysis<|message|>ab")
    assert allowed(constraint) == {*b"<"}


def test_the_choices_of_a_request_are_apart(digit: Guide) -> None:
    shared = ChatGuide(MODEL, THINKING, digit)
    first, second = shared.new(), shared.new()
    write(first, "<think>")
    assert allowed(first) is FREE
    assert allowed(second) == {*b" \n12<"}
