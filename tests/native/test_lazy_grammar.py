"""Grammars that sleep until the answer has a trigger: they constrain from there on, and not before."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import LogitFault
from tests.native.chat_templates import ALL, TOOLS, apply
from tests.native.conftest import World, mask_of, ok

WORLDS = ["real attention"]
PROMPT = [(7 * n + 3) % 250 for n in range(12)]
CALL = 'root ::= "<call>" [0-9]{3} "</call>"'
WORD = (("word", "<call>"),)


class Dictated:
    """An answer whose tokens are given, or chosen by the model among those that the grammar allows."""

    def __init__(self, world: World, sampler: Any = None, **sampling: Any) -> None:
        self.model = world.model
        self.context = world.context(n_ctx=4_096)
        self.sampler = sampler or world.sampler(**{"ignore_eos": True} | sampling)
        self.context.open(0, PROMPT, self.sampler, _native.CancelFlag())
        self.n_pending = len(PROMPT)

    def step(self) -> Any:
        (row,) = ok(self.context.step([(0, self.n_pending)]))
        self.n_pending = 1
        return row

    def say(self, text: str) -> bool:
        return self.say_tokens(self.model.tokenize(text, add_special=False))

    def say_tokens(self, tokens: Iterable[int]) -> bool:
        for token in tokens:
            self.sampler.restrict(mask_of(self.model.n_vocab, token))
            row = self.step()
            if row.fault is not LogitFault.NONE:
                assert row.fault is LogitFault.GRAMMAR
                return False
            assert row.token == token
        return True

    def choose(self, n_tokens: int) -> str:
        rows = []
        while len(rows) < n_tokens and (not rows or rows[-1].fault is LogitFault.NONE):
            rows.append(self.step())
        return b"".join(self.model.piece(row.token) for row in rows if row.fault is LogitFault.NONE).decode("latin-1")


def test_a_word_wakes_the_grammar_and_begins_what_it_reads(world: World) -> None:
    answer = Dictated(world, grammar=CALL, grammar_triggers=WORD)
    assert answer.say("Anything at all, 7 < 8. <call>")
    constrained = answer.choose(20)
    assert constrained[:3].isdigit()
    assert constrained[3:] == "</call>"


def test_before_a_trigger_the_model_says_what_it_says_without_a_grammar(world: World) -> None:
    free, lazy = Dictated(world), Dictated(world, grammar=CALL, grammar_triggers=WORD)
    assert free.choose(40) == lazy.choose(40)


@pytest.mark.parametrize("greedy", [True, False])
def test_the_grammar_holds_from_its_trigger_to_its_end(world: World, greedy: bool) -> None:
    answer = Dictated(world, grammar=CALL, grammar_triggers=WORD, temperature=0.0 if greedy else 1.0)
    assert answer.say("well <call>123</call>")
    assert not answer.say("and")


@pytest.mark.parametrize(
    ("kind", "trigger", "before", "grammar"),
    [
        ("pattern", r"<start>bot(\s+to)", "<start>bot  to", 'root ::= "  to" "=f"'),
        ("pattern", r"<start>bot(?: to|( up))", "<start>bot to", 'root ::= "<start>bot to=f"'),
        ("pattern", r"^\s+to$", " to", 'root ::= " to=f"'),
        ("pattern", r">>>(?!all)", "x>>>", 'root ::= ">>>=f"'),
        ("pattern", r"(?:^|<start>bot)( to=(?!self<)[^<]*?<m>)", " to=me<m>", 'root ::= " to=me<m>=f"'),
        ("pattern", r"(?:^|<start>bot)( to=(?!self<)[^<]*?<m>)", "x <start>bot to=me<m>", 'root ::= " to=me<m>=f"'),
        ("pattern", "a|b+c", "xxbbc", 'root ::= "bbc=f"'),
        ("pattern", "ax?y", "xxay", 'root ::= "ay=f"'),
        ("pattern_full", "a+b", "aaab", 'root ::= "aaab=f"'),
        ("word", "ö<", "größ ö<", 'root ::= "ö<=f"'),
    ],
)
def test_the_first_group_begins_the_grammar(world: World, kind: str, trigger: str, before: str, grammar: str) -> None:
    answer = Dictated(world, grammar=grammar, grammar_triggers=((kind, trigger),))
    assert answer.say(before)
    assert answer.choose(3) == "=f"


@pytest.mark.parametrize(
    ("kind", "trigger", "text"),
    [
        ("pattern", r"^\s+to$", "x to"),
        ("pattern", r"(?:^|<start>bot)( to=(?!self<)[^<]*?<m>)", " to=self<m>"),
        ("pattern", r"(?:^|<start>bot)( to=(?!self<)[^<]*?<m>)", "x" * 3_000 + " to=me<m>"),
        ("pattern_full", "a+b", "aaabc"),
        ("word", "<call>", "<call <cal"),
    ],
)
def test_what_is_no_trigger_wakes_nothing(world: World, kind: str, trigger: str, text: str) -> None:
    answer = Dictated(world, grammar='root ::= "nothing like it"', grammar_triggers=((kind, trigger),))
    # One token at once would be a text that ends where it must not: as many as it has characters.
    assert answer.say_tokens(token for one in text for token in answer.model.tokenize(one, add_special=False))
    assert answer.say("and so on")


def test_a_token_wakes_the_grammar(world: World) -> None:
    (token,) = world.model.tokenize("{", add_special=False)
    answer = Dictated(world, grammar='root ::= "{" [0-9]{3} "}"', grammar_triggers=(("token", str(token)),))
    assert answer.say("some text {")
    assert answer.choose(8)[:3].isdigit()


def test_an_answer_that_wakes_the_grammar_and_disobeys_it_goes_on_free(world: World) -> None:
    answer = Dictated(world, grammar=CALL, grammar_triggers=(("word", "call>x"),))
    assert answer.say("<call>x")
    assert answer.say("anything <call>y")


def test_in_reasoning_nothing_wakes_the_grammar(world: World) -> None:
    marks = {"thinking_start": "<think>", "thinking_ends": ("", "</think>", "<call>")}
    answer = Dictated(world, grammar=CALL, grammar_triggers=(("word", "<call>"), ("word", "1")), **marks)
    assert answer.say("<think> 1 <c 2 </think> a ")
    assert answer.say("<think> 1 <call>")
    assert answer.choose(20).endswith("</call>")


@pytest.mark.parametrize(("prompt", "wakes"), [("<think>\n", False), ("<think>\n\n</think>\n", True), ("", True)])
def test_reasoning_may_have_begun_in_the_prompt(world: World, prompt: str, wakes: bool) -> None:
    marks = {"thinking_start": "<think>", "thinking_ends": ("</think>",)}
    answer = Dictated(world, grammar=CALL, grammar_triggers=WORD, grammar_prefix=prompt, **marks)
    assert answer.say("<call>")
    assert answer.say("x") is not wakes


def test_a_grammar_without_triggers_goes_on_from_its_prefix(world: World) -> None:
    answer = Dictated(world, grammar='root ::= "<bot>\\n" [0-9]{3}', grammar_prefix="<bot>\n")
    assert answer.choose(4).isdigit()


def test_a_prefix_that_the_grammar_does_not_allow_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="begins the answer"):
        world.sampler(grammar=CALL, grammar_prefix="<bot>")


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (("word", ""), "bytes"),
        (("word", "x" * 1_025), "bytes"),
        (("pattern", "("), "pattern"),
        (("pattern", r"(a)\1"), "pattern"),
        (("token", "-1"), "vocabulary"),
        (("token", "1000000"), "vocabulary"),
        (("token", "<tool>"), "vocabulary"),
        (("sound", "x"), "kind"),
    ],
)
def test_a_trigger_that_is_none_is_refused(world: World, trigger: tuple[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        world.sampler(grammar=CALL, grammar_triggers=(trigger,))


def test_a_pattern_with_many_readings_takes_no_time(world: World) -> None:
    """And no stack: tried reading by reading, it would take longer than the world has been there."""
    answer = Dictated(world, grammar=CALL, grammar_triggers=(("pattern", "b(a+)+c"), ("pattern", "(?:(a|a)*)*d")))
    assert answer.say("b" + "a" * 500)


def test_choices_share_the_grammar_of_one_that_goes_on_free(world: World) -> None:
    first = world.sampler(grammar=CALL, grammar_triggers=(("word", "d"), *WORD))
    assert Dictated(world, first).say("d and so on")
    # A text that could not be compiled shows that it is not.
    sampling = SamplingParams(temperature=0.0, grammar="root ::=", grammar_triggers=WORD)
    answer = Dictated(world, _native.Sampler(world.model, sampling, first))
    assert answer.say("well <call>12")
    assert not answer.say("</call>")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_every_grammar_for_tools_is_accepted(world: World, name: str, choice: str, parallel: bool) -> None:
    form = json.loads(apply(name, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel))
    world.sampler(**grammar_of(form))


# Of a request with a schema, llama.cpp constrains nothing for these.
UNCONSTRAINED = {
    *("Kimi-K2-Instruct", "Kimi-K2-Thinking", "Kimi-K3", "moonshotai-Kimi-K2"),
    *("GigaChat3-10B-A1.8B", "inclusionai-ling-3.0-flash", "meetkai-functionary-medium-v3.2"),
}


@pytest.mark.parametrize("name", ALL)
def test_every_grammar_for_a_schema_is_accepted(world: World, name: str) -> None:
    form = json.loads(apply(name, json_schema={"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert bool(form["grammar"]) is (name not in UNCONSTRAINED)
    world.sampler(**grammar_of(form))


def grammar_of(form: dict[str, Any]) -> dict[str, Any]:
    triggers = ((trigger["type"], trigger["value"]) for trigger in form["grammar_triggers"])
    return {
        "grammar": form["grammar"],
        "grammar_prefix": form["generation_prompt"],
        "grammar_triggers": tuple(triggers) if form["grammar_lazy"] else (),
        "thinking_start": form["thinking_start_tag"],
        "thinking_ends": tuple(form["thinking_end_tags"]),
    }
