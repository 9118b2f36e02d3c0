"""The contract of ``_native.pyi``, models, flags and samplers: kept by the compiled module and by its fake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllmcancel.errors import LoadCancelled, ModelLoadError, UsageError
from tests.native.conftest import PROMPT, World


def test_a_model_knows_what_it_remembers_with(world: World) -> None:
    assert world.model.memory_kind == ("attention" if world.survives_abort else world.kind)


def test_a_missing_file_is_a_load_error_that_names_it(world: World, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        world.native.Model.load(tmp_path / "missing.gguf")


def test_loading_reports_progress_up_to_one(world: World) -> None:
    fractions: list[float] = []
    world.native.Model.load(world.path, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert 0.0 <= fractions[0] <= fractions[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("progress", "error"), [(lambda _: False, LoadCancelled), (lambda _: 1 / 0, ZeroDivisionError)]
)
def test_loading_is_cancelled_by_its_progress_callback_which_may_raise(world: World, progress: Any, error: Any) -> None:
    with pytest.raises(error):
        world.native.Model.load(world.path, progress=progress)


def test_all_pieces_are_those_of_the_tokens_one_by_one(world: World) -> None:
    tokens = range(world.model.n_vocab)
    assert world.model.pieces() == [world.model.piece(token) for token in tokens]
    assert world.model.pieces(special=True) == [world.model.piece(token, special=True) for token in tokens]


def test_the_tokens_that_end_an_answer_are_listed(world: World) -> None:
    tokens = range(world.model.n_vocab)
    assert list(world.model.eog_tokens()) == [token for token in tokens if world.model.is_eog(token)]


@pytest.mark.parametrize("text", ["plain text", "héllo €😀", " \n\t ", b"ab"])
def test_the_pieces_of_a_text_are_the_text(world: World, text: str | bytes) -> None:
    tokens = world.model.tokenize(text, add_special=False)
    assert b"".join(map(world.model.piece, tokens)) == (text if isinstance(text, bytes) else text.encode())


def test_control_tokens_have_a_piece_only_if_asked(world: World) -> None:
    eos = world.model.special_tokens["eos"]
    assert world.model.is_eog(eos)
    assert not world.model.is_eog(3)
    assert world.model.piece(eos) == b""
    assert world.model.piece(eos, special=True)


def test_a_flag_stays_raised(world: World) -> None:
    flag = world.native.CancelFlag()
    assert not flag.is_set()
    flag.set()
    flag.set()
    assert flag.is_set()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda world: world.model.piece(-1), None),
        (lambda world: world.model.piece(10**6), None),
        (lambda world: world.sampler(logit_bias=((10**6, 1.0),)), None),
        (lambda world: world.sampler().accept_prompt([1, 10**6]), None),
        (lambda world: world.sampler(grammar='foo ::= "a"'), "grammar"),
    ],
    ids=["piece of none", "piece", "bias", "prompt", "grammar without a root"],
)
def test_tokens_outside_the_vocabulary_and_grammars_without_a_root_are_refused(
    world: World, ask: Callable[[World], object], words: str | None
) -> None:
    with pytest.raises(UsageError, match=words):
        ask(world)


def test_the_same_seed_gives_the_same_text(world: World) -> None:
    first = world.alone(PROMPT, 8, temperature=1.0, seed=7)
    assert first == world.alone(PROMPT, 8, temperature=1.0, seed=7)
    assert first != world.alone(PROMPT, 8, temperature=1.0, seed=8)


def test_a_banned_token_is_not_chosen(world: World) -> None:
    (likeliest,) = world.alone(PROMPT, 1)
    assert world.alone(PROMPT, 1, logit_bias=((likeliest, -np.inf),)) != [likeliest]


def test_a_favoured_token_is_chosen(world: World) -> None:
    assert world.alone(PROMPT, 2, logit_bias=((77, 1e4),)) == [77, 77]


def test_the_end_can_be_banned(world: World) -> None:
    eos = world.model.special_tokens["eos"]
    assert world.alone(PROMPT, 1, logit_bias=((eos, 1e4),)) == [eos]
    assert world.alone(PROMPT, 1, logit_bias=((eos, 1e4),), ignore_eos=True) != [eos]
