"""Fill-in-the-middle prompts: which tokens, in which order, and what is cut."""

import pytest

from pyllmcancel.chat.infill import MAX_AROUND, STRIDES, Gap, Snippet, cut, fim_prompt, infill_prompt
from pyllmcancel.errors import InvalidRequestError
from tests.support import fake_native

# The fake model's tokens are bytes; these stand for the special ones.
PRE, SUF, MID, REP, SEP, BOS = 1, 2, 3, 4, 5, 6
ROOM = 1000


def fim_model(**special: int) -> fake_native.Model:
    model = fake_native.Model()
    model.special_tokens = {"fim_pre": PRE, "fim_suf": SUF, "fim_mid": MID, "eos": 256} | special
    return model


def gap(prefix: str = "", suffix: str = "") -> Gap:
    return Gap(list(prefix.encode()), list(suffix.encode()))


def test_a_model_that_begins_texts_with_a_token_gets_it_first() -> None:
    model = fim_model(bos=BOS)
    model.adds_bos = True
    assert fim_prompt(model, "a", "") == [BOS, PRE, *b"a", SUF, MID]


def test_snippets_come_first_in_the_tokens_of_a_repository() -> None:
    model = fim_model(fim_rep=REP, fim_sep=SEP)
    tokens = infill_prompt(model, gap("a", "b"), [Snippet("x.py", "one"), Snippet("y.py", "two")], ROOM)
    snippets = [SEP, *b"x.py\none", SEP, *b"y.py\ntwo", SEP, *b"file\n"]
    assert tokens == [REP, *b"project\n", *snippets, PRE, *b"a", SUF, *b"b", MID]


def test_without_these_tokens_snippets_are_plain_text() -> None:
    tokens = infill_prompt(fim_model(), gap("a", "b"), [Snippet("x.py", "one")], ROOM)
    assert tokens == [*b"--- x.py ---\none\n\n", PRE, *b"a", SUF, *b"b", MID]


def test_the_last_snippets_stay_and_none_is_cut() -> None:
    model = fim_model(fim_sep=SEP)
    snippets = [Snippet(f"{number}.py", "x" * 30) for number in range(9)]
    for room in range(10, 200):
        tokens = infill_prompt(model, gap("a", "b"), snippets, room)
        assert len(tokens) <= room
        kept = [number for number in range(9) if bytes(tokens).count(f"{number}.py".encode())]
        assert kept == list(range(9 - len(kept), 9))
        assert bytes(tokens).count(b"x" * 30) == len(kept)
    assert len(kept) > 3


@pytest.mark.parametrize(("n_prefix", "n_suffix"), [(10, 10), (100, 10), (10, 100), (100, 100), (0, 100), (100, 0)])
@pytest.mark.parametrize("room", [0, 1, 20, 64, 110])
def test_what_is_cut_is_cut_far_from_the_gap(n_prefix: int, n_suffix: int, room: int) -> None:
    prefix, suffix = list(range(n_prefix)), list(range(n_suffix))
    found = cut(Gap(prefix, suffix), room)
    assert len(found.prefix) + len(found.suffix) <= room
    assert found.prefix == prefix[n_prefix - len(found.prefix) :]
    assert found.suffix == suffix[: len(found.suffix)]
    if n_prefix + n_suffix <= room:
        assert found == Gap(prefix, suffix)


def test_the_prefix_has_three_quarters_of_what_is_too_small_for_both() -> None:
    found = cut(Gap(list(range(1000)), list(range(1000))), 400)
    assert len(found.suffix) == 100
    assert 300 - 300 // STRIDES < len(found.prefix) <= 300


def test_what_one_side_leaves_is_the_others() -> None:
    assert len(cut(Gap([1] * 10, [2] * 1000), 400).suffix) == 390
    assert len(cut(Gap([1] * 1000, [2] * 10), 400).prefix) > 390 - 390 // STRIDES


def test_a_growing_prefix_keeps_its_beginning_for_many_tokens() -> None:
    """An editor's next request begins with what the last one has in the cache."""
    text, suffix = list(range(2000)), [0] * 500
    beginnings = [cut(Gap(text[:length], suffix), 400).prefix[0] for length in range(1000, 1300)]
    assert len(set(beginnings)) <= 300 // (300 // STRIDES) + 1


def test_without_room_for_the_special_tokens_there_is_no_prompt() -> None:
    with pytest.raises(InvalidRequestError, match="leaves 2 tokens") as caught:
        infill_prompt(fim_model(), gap("a", "b"), [], 2)
    assert caught.value.param == "n_predict"


def test_however_large_the_context_what_surrounds_the_gap_is_limited() -> None:
    tokens = infill_prompt(fim_model(), Gap([7] * 10_000, [8] * 10_000), [], 100_000)
    assert len(tokens) <= MAX_AROUND + 3
