"""Grammars that have exponentially many readings: the request that has one is bounded, and others go on as before."""

import math
import re
import string
from typing import Any

import pytest

from pyllmcancel.step import LogitFault
from tests.native.conftest import World, ok

WORLDS = ["real attention"]
PROMPT = [(7 * n + 3) % 250 for n in range(12)]
MAX_TOKENS = 300

# The first took llama.cpp's own matcher out of the world within ten characters.
AMBIGUOUS = {
    "three ways on": 'root ::= x "!"\nx ::= [a-z ]+ x? | [a-z ] x x? | [a-z ]',
    "nested optionals": "\n".join(
        ["root ::= r0 r0", *(f"r{n} ::= r{n + 1}? r{n + 1}?" for n in range(25)), "r25 ::= [a-z]? [a-z ]?"]
    ),
    "nested repetitions": "root ::= (([a-z ]{0,40}){0,40})*",
    "itself, twice": "root ::= root root | [a-z ]",
}
# Whatever the answer is, if it ends it is this.
LANGUAGES = {
    'root ::= "a"? ' + '"a"? ' * 59: "a{0,60}",
    'root ::= root [ab] | "c"': "c[ab]*",
    "root ::= [ab] root | [ab]": "[ab]+",
    'root ::= a\na ::= b\nb ::= a | "x" | ""': "x?",
    'root ::= ("ab" | "a") ("bc" | "c")': "abbc|abc|ac",
    "root ::= [^\\x00-\\x60\\x7b-\\U0010ffff]{3,5}": "[a-z]{3,5}",
    'root ::= ("x" "y"?){2} # twice\n': "(xy?){2}",
    "root ::= [a-db-fh-jg]{2}": "[a-j]{2}",
    "root ::= [^\\x00-\\x60\\x62-\\x64\\x65-\\U0010ffff]{2}": "aa",
    "# of four bytes, and fewer\n\nroot ::= [ä€🙂]{2}": "[ä€🙂]{2}",
}
REFUSED = {
    'root ::= "a"{1000000}': "more often",
    'root ::= (("a"{2000}){2000}){2000}': "repeated",
    "root ::= " + '"a"{0,2000} ' * 1000: "repeats",
    'root ::= "' + "a" * 100_000 + '"{2000}': "repeats",
    "root ::= " + '<"> ' + "(" * 5_000: "nested deeper",
    f'root ::= {"x" * 5_000}\n{"x" * 5_000} ::= "a"': "name",
    "root ::= root": "nothing",
    "root ::= " + " | ".join(f'"{n}"' for n in range(20_000)): "begin",
    "root ::= a\na ::= b\nb ::= a": "nothing",
    'x ::= "a"': "root",
    'root ::= "' + "a" * 2_000 + '"{1900}': "elements",
    'root ::= "' + "a" * 10_000 + '"' + "{2}" * 10: "repeats more",
    'root ::= "' + "a" * 10_000 + '"' + "+" * 1_000: "repeats more",
    'root ::= "a"{3,2}': "to fewer",
    'root ::= ("a"{#}\n5,3})': "brace",
    'root ::= ("a"{5#}\n,3})': "brace",
    'root ::= "a"' + "{" * 200_000: "brace",
    'root ::= "a"\0': "U\\+0000",
    'root ::= "a"{3': "grammar",
    "#" * 300_000: "grammar",
    "root ::= (": "grammar",
    "root ::= undefined": "grammar",
    "garbage": "grammar",
}


def answer(world: World, **sampling: Any) -> tuple[list[int], LogitFault]:
    context = world.opened(PROMPT, **sampling)
    (row,) = ok(context.step([(0, len(PROMPT))]))
    found: list[int] = []
    while row.fault is LogitFault.NONE and not world.model.is_eog(row.token) and len(found) < MAX_TOKENS:
        found.append(row.token)
        (row,) = ok(context.step([(0, 1)]))
    return found, row.fault


@pytest.mark.parametrize("grammar", AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("top_k", [40, 0])
def test_an_ambiguous_grammar_ends_its_request_and_no_other(world: World, grammar: str, top_k: int) -> None:
    context = world.context()
    # What would end the answer is banned.
    ends = tuple((token, -math.inf) for token in range(world.model.n_vocab) if b"!" in world.model.piece(token))
    world.open(context, 0, PROMPT, grammar=grammar, temperature=1.0, top_k=top_k, ignore_eos=True, logit_bias=ends)
    world.open(context, 1, PROMPT)
    row, neighbour = ok(context.step([(0, 12), (1, 12)]))
    got = [neighbour.token]
    while row.fault is LogitFault.NONE and len(got) < MAX_TOKENS:
        row, neighbour = ok(context.step([(0, 1), (1, 1)]))
        got.append(neighbour.token)
    assert row.fault is LogitFault.TOO_COMPLEX
    assert got == world.alone(PROMPT, len(got))


def test_what_is_kept_of_a_long_answer_is_bounded(world: World) -> None:
    """A hundred rules call themselves for every character, and each call must be returned from."""
    rules = [f'r{n} ::= [a-z ] root "!"' for n in range(100)]
    grammar = "\n".join(["root ::= " + " | ".join(f"r{n}" for n in range(100)), *rules])
    context = world.opened(PROMPT, grammar=grammar, n_ctx=2_000)
    (row,) = ok(context.step([(0, len(PROMPT))]))
    found = 0
    while row.fault is LogitFault.NONE and found < 1_500:
        (row,) = ok(context.step([(0, 1)]))
        found += 1
    assert row.fault is LogitFault.TOO_COMPLEX
    assert found > 100


@pytest.mark.parametrize(("grammar", "language"), LANGUAGES.items(), ids=LANGUAGES.values())
@pytest.mark.parametrize("seed", range(8))
def test_an_answer_that_ends_is_of_the_grammars_language(world: World, grammar: str, language: str, seed: int) -> None:
    tokens, fault = answer(world, grammar=grammar, temperature=1.0, top_k=0, min_p=0.0, top_p=1.0, seed=seed)
    text = b"".join(map(world.model.piece, tokens)).decode()
    assert fault is LogitFault.NONE
    assert len(tokens) == MAX_TOKENS or re.fullmatch(language, text)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_list_that_goes_on_by_calling_itself_can_be_long(world: World, temperature: float) -> None:
    grammar = "root ::= [a-z ] root"
    context = world.opened(PROMPT, grammar=grammar, temperature=temperature, n_ctx=3_000)
    tokens = world.run(context, 0, 2_500)
    assert re.fullmatch(rb"[a-z ]{2500,}", b"".join(map(world.model.piece, tokens)))


def test_a_class_may_list_the_characters_of_a_script(world: World) -> None:
    kanji = "".join(chr(0x4E00 + 2 * n) for n in range(10_000))
    tokens, fault = answer(world, grammar=f"root ::= [{kanji}a-z ]+", temperature=1.0, top_k=0, ignore_eos=True)
    assert (fault, len(tokens)) == (LogitFault.NONE, MAX_TOKENS)
    text = b"".join(map(world.model.piece, tokens)).decode("utf-8", "ignore")
    assert set(text) <= set(kanji + string.ascii_lowercase + " ")


def test_brackets_may_be_nested_as_deep_as_the_answer_is_long(world: World) -> None:
    tokens, fault = answer(world, grammar='root ::= "(" root ")"')
    assert (fault, len(tokens)) == (LogitFault.NONE, MAX_TOKENS)
    assert set(b"".join(map(world.model.piece, tokens))) == set(b"(")


def test_a_token_of_a_grammar_is_that_token(world: World) -> None:
    tokens, fault = answer(world, grammar='root ::= <[65]> !<[66]> "a"', temperature=1.0)
    assert (tokens[0], world.model.piece(tokens[2]), fault) == (65, b"a", LogitFault.NONE)
    assert (len(tokens), tokens[1] != 66) == (3, True)


def test_no_character_begins_that_cannot_be_completed(world: World) -> None:
    """The byte 0xED begins U+D000 to U+D7FF, and those that are no characters in UTF-8."""
    (begin,) = (token for token in range(world.model.n_vocab) if world.model.piece(token) == b"\xed")
    tokens, fault = answer(world, grammar="root ::= [^\\x00-\\uD7FF]", logit_bias=((begin, 50.0),), temperature=0.0)
    assert (fault, begin in tokens) == (LogitFault.NONE, False)


@pytest.mark.parametrize(("grammar", "words"), REFUSED.items(), ids=REFUSED.values())
def test_a_grammar_that_would_grow_beyond_bounds_is_refused(world: World, grammar: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        world.sampler(grammar=grammar)
