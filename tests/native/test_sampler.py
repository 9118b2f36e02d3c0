"""The real sampler: logits that cannot be sampled, grammars, penalties."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.step import LogitFault
from tests.native.conftest import World, mask_of, ok
from tests.support import tiny_models
from tests.support.device import load_model

WORLDS = ["real attention"]
PROMPT = [(7 * n + 3) % 250 for n in range(12)]


def world_with_output(path: Path, value: float) -> World:
    """A model whose output matrix is one value throughout."""
    weights = tiny_models.llama_weights(tiny_models.TinyShape())
    weights["output.weight"][:] = value
    tiny_models.write_model(path, "llama", weights, tiny_models.attention_metadata(weights.shape))
    return World(_native, "attention", path, load_model(path))


@pytest.mark.parametrize(
    ("value", "fault"),
    [(float("nan"), LogitFault.NOT_FINITE), (float("inf"), LogitFault.NOT_FINITE), (0.0, LogitFault.ALL_EQUAL)],
)
def test_logits_that_mean_nothing_are_a_fault_with_no_token(tmp_path: Path, value: float, fault: LogitFault) -> None:
    context = world_with_output(tmp_path / "faulty.gguf", value).opened(PROMPT)
    (row,) = ok(context.step([(0, len(PROMPT))]))
    assert (row.token, row.fault) == (-1, fault)
    assert context.tokens(0) == PROMPT


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_that_allows_only_a_banned_end_is_the_requests_own_fault(world: World, temperature: float) -> None:
    context = world.context()
    ends = tuple((token, -np.inf) for token in range(world.model.n_vocab) if world.model.is_eog(token))
    world.open(context, 0, PROMPT, grammar='root ::= "a"', logit_bias=ends, temperature=temperature)
    world.open(context, 1, PROMPT)
    ok(context.step([(0, 12), (1, 12)]))
    row, neighbour = ok(context.step([(0, 1), (1, 1)]))
    assert (row.token, row.fault) == (-1, LogitFault.GRAMMAR)
    assert [*context.tokens(1)[12:], *world.run(context, 1, 1)] == world.alone(PROMPT, 3)
    assert neighbour.fault is LogitFault.NONE


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_that_is_done_ends_an_answer_that_would_go_on(world: World, temperature: float) -> None:
    tokens = world.alone(PROMPT, 3, grammar='root ::= "a" "a"?', ignore_eos=True, temperature=temperature)
    assert [world.model.piece(token) for token in tokens[:2]] == [b"a", b"a"]
    assert world.model.is_eog(tokens[2])


def test_a_grammar_chooses_among_what_a_mask_allows(world: World) -> None:
    """Also where more than enough of other tokens are likelier."""
    context, sampler = world.sampled(PROMPT, grammar="root ::= [a-z]+", temperature=0.0, top_k=1)
    n_vocab = world.model.n_vocab
    (rare,) = (token for token in range(n_vocab) if world.model.piece(token) == b"q")
    other = (token for token in range(n_vocab) if not world.model.piece(token).isalpha())
    sampler.restrict(mask_of(n_vocab, rare, *other))
    (row,) = ok(context.step([(0, len(PROMPT))]))
    assert row.token == rare


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_vocabulary_that_is_banned_altogether_is_the_requests_own_fault(world: World, temperature: float) -> None:
    everything = tuple((token, -np.inf) for token in range(world.model.n_vocab))
    row = world.first_row(PROMPT, logit_bias=everything, temperature=temperature)
    assert (row.token, row.fault) == (-1, LogitFault.GRAMMAR)


@pytest.mark.parametrize("temperature", [1e-38, 1e-7])
def test_a_temperature_that_divides_no_logit_takes_the_likeliest_token(world: World, temperature: float) -> None:
    assert world.alone(PROMPT, 5, temperature=temperature) == world.alone(PROMPT, 5, temperature=0.0)


def test_a_repeat_penalty_sees_the_prompt(world: World) -> None:
    (likeliest,) = world.alone(PROMPT, 1)
    context, sampler = world.sampled(PROMPT, presence_penalty=100.0)
    sampler.accept_prompt([*PROMPT, likeliest])
    assert world.run(context, 0, 1) != [likeliest]


def test_a_penalty_keeps_a_token_from_coming_twice(world: World) -> None:
    assert len(set(world.alone(PROMPT, 30, presence_penalty=100.0))) == 30


def test_brackets_in_texts_and_classes_are_not_counted(world: World) -> None:
    deep = '"' + "(" * 300 + '"'
    assert world.sampler(grammar=f'root ::= {deep} | [({{] | "\\"{{" # {{5,2}}') is not None


@pytest.mark.parametrize("grammar", ["root ::= [a-z]+", ""], ids=["grammar", "none"])
def test_an_end_that_a_sampler_makes_up_is_taken_unless_a_grammar_does_not_allow_it(world: World, grammar: str) -> None:
    """llama.cpp's "infill" makes one up where no token is likely: here all are nearly as likely as each other."""
    flat = {"samplers": ("temperature", "infill"), "temperature": 100.0}
    row = world.first_row(PROMPT, **flat, ignore_eos=True, grammar=grammar, seed=3)
    if grammar:
        assert (row.token, row.fault) == (-1, LogitFault.GRAMMAR)
    else:
        assert row.fault is LogitFault.NONE
        assert world.model.is_eog(row.token)


def test_an_end_that_a_sampler_makes_up_is_no_token_where_a_mask_bars_it(world: World) -> None:
    context = world.context()
    sampler = world.sampler(samplers=("temperature", "infill"), temperature=100.0, seed=3)
    n_vocab = world.model.n_vocab
    sampler.restrict(mask_of(n_vocab, *(token for token in range(n_vocab) if not world.model.is_eog(token))))
    context.open(0, PROMPT, sampler, _native.CancelFlag())
    (row,) = ok(context.step([(0, len(PROMPT))]))
    assert (row.token, row.fault) == (-1, LogitFault.GRAMMAR)


def test_logits_that_mean_nothing_describe_no_prompt(tmp_path: Path) -> None:
    world = world_with_output(tmp_path / "faulty.gguf", float("nan"))
    context = world.opened(PROMPT, n_logprobs=1, n_described=len(PROMPT), n_ctx=64)
    (row,) = ok(context.step([(0, 4)]))
    assert (row.token, row.fault) == (-1, LogitFault.NOT_FINITE)


def test_a_vocabulary_of_any_size_is_sampled_alike(tmp_path: Path) -> None:
    """Rows are read in blocks of 64 logits, and what is left is a shorter block."""
    vocabulary = tiny_models.load_vocabulary()
    tokens = [f"one-of-the-words-that-are-longer-than-most-{n}" for n in range(37)]
    longer = replace(vocabulary, tokens=(*tokens, *vocabulary.tokens))
    assert len(longer.tokens) % 64
    path = tiny_models.write_tiny_llama(tmp_path / "odd.gguf", vocabulary=longer)
    world = World(_native, "attention", path, load_model(path))
    # A penalty as good as none: llama.cpp's samplers then see every token.
    assert world.alone(PROMPT, 24) == world.alone(PROMPT, 24, frequency_penalty=1e-20)
    assert world.model.piece(36).decode() == tokens[36]
    last = world.model.n_vocab - 1
    assert world.alone(PROMPT, 1, logit_bias=((last, 100.0),)) == [last]


# More tokens than a block of the row has, so that the short way differs from the long one.
BIASES: list[dict[str, object]] = [
    {"ignore_eos": True, "logit_bias": tuple((n, 30.0) for n in range(2048))},
    {"logit_bias": ((5, 30.0), (5, 30.0), (6, 100.0), (6, -math.inf), (7, 100.0), (7, -100.0))},
    {"ignore_eos": True},
    {"logit_bias": tuple((n, -100.0) for n in range(0, 2000, 16))},
    {"logit_bias": ((5, 100.0), (1900, 2.0), (700, -3.0))},
    {"logit_bias": tuple((n, 8.0) for n in range(300, 2000, 7))},
]


@pytest.mark.parametrize("choice", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("bias", BIASES, ids=["all", "several", "eos", "banned", "few", "many"])
def test_a_biased_choice_is_that_of_the_whole_vocabulary(packaged: World, bias: Any, choice: Any) -> None:
    # A penalty as good as none: llama.cpp's samplers then see every token, not the likeliest only.
    slow = {"frequency_penalty": 1e-20}
    prompt = packaged.model.tokenize("def hello_world():\n")
    assert packaged.alone(prompt, 24, **bias, **choice) == packaged.alone(prompt, 24, **bias, **choice, **slow)


def test_several_biases_of_one_token_add_up_and_a_ban_stands(packaged: World) -> None:
    world, prompt = packaged, packaged.model.tokenize("x = ")
    assert world.alone(prompt, 1, logit_bias=((5, 50.0), (6, 60.0), (5, 50.0))) == [5]
    assert world.alone(prompt, 1, logit_bias=((5, 500.0), (6, 60.0), (5, -math.inf))) == [6]
    eos = next(token for token in range(world.model.n_vocab) if world.model.is_eog(token))
    assert world.alone(prompt, 1, logit_bias=((eos, 90.0), (6, 60.0)), ignore_eos=True) == [6]
