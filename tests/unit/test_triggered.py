"""A constraint that sleeps until the answer begins a call: whatever tokens that comes in."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.constraints.triggered import Anywhere, AtStart, Trigger, TriggeredConstraint, TriggeredGuide
from pyllmcancel.errors import ConstraintError
from tests.support.fake_model import EOS, N_VOCAB, Model

GRAMMAR = 'start: "<call>" /[0-9]+/ "</call>"'


class LongTokens(Model):
    """The bytes, the end, and some longer texts."""

    texts = (b"<call>", b" <call", b">1", b">x", b"2</call>", b'{"na', b"\xf0\x9f", b">\xc3", b" <call>\xc3")
    n_vocab = N_VOCAB + len(texts)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self.texts[token - N_VOCAB] if token >= N_VOCAB else super().piece(token, special=special)


MODEL = cast("Any", LongTokens())


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    return Guidance(MODEL)


def awake(guidance: Guidance, trigger: Trigger, grammar: str = GRAMMAR) -> TriggeredConstraint:
    guide = guidance.compile(grammar, "tools")
    return TriggeredGuide(guide, trigger, MODEL.piece, guidance.tokenizer).new()


def tokens(*texts: bytes) -> list[int]:
    """Each text as one long token if there is one, else as bytes."""
    found: list[int] = []
    for text in texts:
        found += [N_VOCAB + MODEL.texts.index(text)] if text in MODEL.texts else text
    return found


def say(constraint: TriggeredConstraint, *texts: bytes) -> bool:
    return [constraint.accept(token) for token in tokens(*texts)][-1]


@pytest.mark.parametrize(
    "texts",
    [
        (b"<call>",),
        (b"Let me see: ", b"<call>"),
        (b"<c", b"all", b">"),
        (b"<<call", b">"),
        (b" <call", b">"),
        ("Grüße ".encode(), b"\xf0\x9f", b"\x99\x82", b"<call>"),
        (b" <call", b">1"),
    ],
)
def test_it_wakes_at_the_trigger_in_whatever_tokens(guidance: Guidance, texts: tuple[bytes, ...]) -> None:
    constraint = awake(guidance, Anywhere(b"<call>"))
    assert constraint.mask() is None
    for token in tokens(*texts)[:-1]:
        assert not constraint.accept(token)
        assert constraint.mask() is None, "nothing is decided before the trigger is complete"
    assert not constraint.accept(tokens(*texts)[-1])
    assert constraint.mask() is not None
    with pytest.raises(ConstraintError):
        constraint.accept(ord("x"))


def test_it_is_complete_when_its_grammar_is(guidance: Guidance) -> None:
    constraint = awake(guidance, Anywhere(b"<call>"))
    assert not say(constraint, b"<call>")
    assert not say(constraint, b"12")
    assert say(constraint, b"</call>")


def test_text_without_a_trigger_stays_free(guidance: Guidance) -> None:
    constraint = awake(guidance, Anywhere(b"<call>"))
    for byte in b"1 < 2, <call, < call>, <CALL> " * 10:
        assert not constraint.accept(byte)
        assert constraint.mask() is None


@pytest.mark.parametrize("texts", [(b" <call", b">x"), (b" <call", b">\xc3"), (b" <call>\xc3",)])
def test_a_trigger_in_a_token_that_no_call_can_have_is_text(guidance: Guidance, texts: tuple[bytes, ...]) -> None:
    constraint = awake(guidance, Anywhere(b"<call>"))
    assert not say(constraint, *texts)
    assert constraint.mask() is None
    assert not say(constraint, b" and now <call>")
    assert constraint.mask() is not None, "the next one is as good as the first"


JSON_CALL = r"""start: "{" BLANK? "\"name\"" BLANK? ":" BLANK? "\"f\"" "}"
BLANK: /[ \n]{1,8}/"""


@pytest.mark.parametrize("texts", [(b'{"name":',), (b'\n {\n "name" :',), (b'{"na', b'me":')])
def test_a_call_that_must_be_the_whole_answer(guidance: Guidance, texts: tuple[bytes, ...]) -> None:
    constraint = awake(guidance, AtStart(b'{"name":'), JSON_CALL)
    assert not say(constraint, *texts)
    assert constraint.mask() is not None
    assert say(constraint, b' "f"}')


@pytest.mark.parametrize("text", [b'See {"name":', b'{"names":', b'[{"name":', b'{"sum": {"name":'])
def test_other_answers_stay_free(guidance: Guidance, text: bytes) -> None:
    constraint = awake(guidance, AtStart(b'{"name":'), JSON_CALL)
    assert not say(constraint, text)
    assert constraint.mask() is None


def test_the_end_of_an_answer_before_any_trigger_is_no_concern_of_it(guidance: Guidance) -> None:
    constraint = awake(guidance, Anywhere(b"<call>"))
    assert not constraint.accept(EOS)
    assert constraint.mask() is None
