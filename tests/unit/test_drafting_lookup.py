"""Drafts from a text: where the end of a sequence occurs in it, and what follows there."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyllmcancel.drafting.lookup import LENGTHS, MAX_SEARCHED, Match, TokenText, continuation

FEW = st.sampled_from([0, 1, 2, 256, 257, 65536, -1])  # tokens whose bytes look alike, across borders too
TEXT = st.lists(FEW, max_size=60)


def newest_place(suffix: Sequence[int], text: Sequence[int], end: int) -> tuple[int, int] | None:
    """As `continuation` should find it, by trying each place: (length, position)."""
    for length in reversed(LENGTHS):
        for position in range(end, length - 1, -1):
            if length <= len(suffix) and text[position - length : position] == suffix[-length:]:
                return length, position
    return None


@given(TEXT, TEXT, st.integers(1, 8))
@example([1, 1], [256, 256, 256, 1, 1, 2], 3)
def test_the_newest_place_of_the_longest_end_is_found(suffix: list[int], text: list[int], most: int) -> None:
    found = continuation(suffix, TokenText(text), most)
    expected = newest_place(suffix, text, len(text) - 1)
    if expected is None:
        assert found is None
    else:
        length, position = expected
        assert found == Match(text[position : position + most], length, position)
        assert found.tokens


@given(TEXT, st.integers(1, 200))
def test_a_text_is_continued_from_an_earlier_place_than_its_end(text: list[int], most: int) -> None:
    found = continuation(text, TokenText(text), most, before=len(text))
    if found is not None:
        assert found.position < len(text)
        assert len(found.tokens) == most
        going_on = text + found.tokens
        # Each token is the one that follows the same tokens a period earlier.
        period = len(text) - found.position
        assert going_on[len(text) :] == going_on[found.position : found.position + most]
        assert all(going_on[i] == going_on[i - period] for i in range(len(text), len(going_on)))


def test_hits_across_the_borders_of_tokens_are_none_and_are_given_up() -> None:
    # The bytes of (1, 1) lie in (256, 256, 256), one byte further.
    assert continuation([1, 1], TokenText([256] * 5), 1) is None
    assert continuation([1, 1], TokenText([1, 1, 5, *[256] * 5]), 1) == Match([5], 2, 2)
    assert continuation([1, 1], TokenText([1, 1, 5, *[256] * 500]), 1) is None


def test_only_the_newest_part_of_a_long_text_is_searched() -> None:
    text = TokenText([7, 8, 9])
    text.extend([5] * (MAX_SEARCHED - 3))
    assert continuation([7, 8], text, 1) == Match([9], 2, 2)
    text.extend([5] * 8)
    assert continuation([7, 8], text, 1) is None


@given(TEXT, TEXT)
def test_a_text_is_a_list_that_grows(begin: list[int], end: list[int]) -> None:
    text = TokenText(begin)
    text.extend(end)
    text.append(5)
    tokens = [*begin, *end, 5]
    assert len(text) == len(tokens)
    assert text[:] == tokens == list(text)
    assert text[1:4] == tokens[1:4]
    assert text[-1] == 5
    with pytest.raises(IndexError):
        text[len(tokens)]


@given(TEXT, TEXT, TEXT)
def test_common_prefixes_are_counted_from_any_token(common: list[int], one: list[int], other: list[int]) -> None:
    ours, theirs = TokenText([4, *common, *one]), TokenText([5, 6, *common, *other])
    n_equal = ours.common_prefix(theirs, 1, 2)
    assert ours[1 : 1 + n_equal] == theirs[2 : 2 + n_equal]
    assert n_equal >= len(common)
    assert ours[1 + n_equal : 2 + n_equal] != theirs[2 + n_equal : 3 + n_equal] or (
        n_equal == min(len(ours) - 1, len(theirs) - 2)
    )
    assert TokenText([*common, *one]).begins_with(TokenText(common))
