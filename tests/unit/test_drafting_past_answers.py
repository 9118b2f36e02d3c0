"""Drafts from texts: where a sequence's end occurs in one, and what is certain or likely to follow a prompt."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyllmcancel.drafting import past_answers
from pyllmcancel.drafting.lookup import LENGTHS, MAX_SEARCHED, Match, TokenText, continuation
from pyllmcancel.drafting.past_answers import OVERHEAD, PastAnswers

END = 0  # a control token
PIECES = [b"", b"", b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"\xc3", b"\xa9", b"\xc3\xa9"]
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)
KEY = "greedy"


def tokenize(text: bytes) -> list[int]:
    """The longest token first, as a tokenizer may do."""
    tokens = []
    while text:
        best = max((piece for piece in PIECES if piece and text.startswith(piece)), key=len)
        tokens.append(PIECES.index(best))
        text = text[len(best) :]
    return tokens


def text_of(tokens: Sequence[int]) -> bytes:
    """The bytes, in which control tokens are visible."""
    return b"".join(PIECES[token] or b"<%d>" % token for token in tokens)


def some_past(most_bytes: int = 1 << 20) -> PastAnswers:
    return PastAnswers(PIECES.__getitem__, tokenize, most_bytes=most_bytes)


@given(TOKENS, TOKENS.filter(bool), TOKENS)
def test_what_is_expected_continues_a_sequences_text(prompt: list[int], answer: list[int], later: list[int]) -> None:
    past = some_past()
    past.remember("ann", prompt, answer, KEY)
    whole = text_of(prompt + answer)
    for asked in (later, tokenize(b"".join(PIECES[token] for token in (prompt + answer)[: len(later)]))):
        expected = past.expected("ann", asked, 100)
        if expected:
            assert whole == text_of(asked) + text_of(expected)
            assert past.expected("ann", asked, 2) == expected[:2]


@given(TOKENS, TOKENS.filter(bool), st.integers(0, 24))
def test_a_prompt_that_ends_at_any_byte_of_a_sequence_meets_it(prompt: list[int], answer: list[int], n: int) -> None:
    tokens = [token for token in prompt + answer if PIECES[token]]
    text = text_of(tokens)
    if len(text) <= n:
        return
    past = some_past()
    past.remember("ann", [], tokens, KEY)
    assert text_of(past.expected("ann", tokenize(text[:n]), 100)) == text[n:]


def test_a_prompt_that_ends_in_a_token_gets_the_rest_of_the_token_and_then_the_same_tokens() -> None:
    past = some_past()
    past.remember("ann", [2, 2], [7, 3, 8, 4, END], KEY)
    assert past.expected("ann", [2, 2, 2], 100) == [6, 3, 8, 4, END]
    assert past.expected("ann", [2, 2, 5], 100) == [4, 3, 8, 4, END]
    assert past.expected("ann", [2, 2, 2, 3, 4, 3], 100) == [8, 4, END]
    assert past.expected("ann", [2, 2, 3], 100) == []


def test_a_tokenizer_that_changes_the_rest_of_a_token_gives_nothing() -> None:
    past = PastAnswers(PIECES.__getitem__, lambda text: [2, *tokenize(text)], most_bytes=1 << 20)
    past.remember("ann", [2], [7, 4], KEY)
    assert past.expected("ann", [2, 2], 100) == []
    assert past.expected("ann", [2], 100) == [7, 4]


def test_the_newest_sequence_that_goes_on_is_expected() -> None:
    past = some_past()
    past.remember("ann", [2], [3, 3], "old")
    past.remember("ann", [2], [4, 4], "new")
    past.remember("ann", [3], [2, 2], "other")
    assert past.expected("ann", [2], 100) == [4, 4]
    assert past.expected("ann", [2, 3], 100) == [3]
    past.remember("ann", [2], [3], "newest")
    assert past.expected("ann", [2, 3], 100) == [3]


@given(st.lists(st.tuples(TOKENS, TOKENS, st.sampled_from(["greedy", "warm", None])), max_size=6), TOKENS)
def test_only_what_was_generated_after_the_same_tokens_under_the_same_key_is_certain(
    history: list[tuple[list[int], list[int], str | None]], asked: list[int]
) -> None:
    past = some_past()
    for prompt, answer, key in history:
        past.remember("ann", prompt, answer, key)
    for key in ("greedy", "warm"):
        going_on = list(asked)
        for token in past.certain("ann", asked, key):
            going_on.append(token)
            assert any(
                len(prompt) < len(going_on) and (prompt + answer)[: len(going_on)] == going_on and key == theirs
                for prompt, answer, theirs in history
            )
    assert past.certain("ann", asked, None) == []


def test_a_sequence_that_goes_on_replaces_its_beginning_and_one_that_ends_sooner_is_dropped() -> None:
    past = some_past()
    past.remember("ann", [2], [3, 4], KEY)
    past.remember("ann", [2, 3], [4, 5], KEY)
    past.remember("ann", [2, 3, 4], [5], KEY)
    assert past.n_bytes == OVERHEAD + 4 * 4
    assert past.certain("ann", [2], KEY) == [3, 4, 5]
    past.remember("ann", [2, 3, 4, 5, 6, 6], [7], KEY)
    assert past.n_bytes == OVERHEAD + 4 * 7
    # No model generated the two tokens in between.
    assert past.certain("ann", [2], KEY) == [3, 4, 5]
    assert past.certain("ann", [2, 3, 4, 5, 6], KEY) == []
    assert past.certain("ann", [2, 3, 4, 5, 6, 6], KEY) == [7]


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob"]), TOKENS, TOKENS, st.sampled_from([KEY, None])), max_size=8))
def test_an_owner_gets_the_same_without_the_others(history: list[tuple[str, list[int], list[int], str | None]]) -> None:
    both, alone = some_past(), some_past()
    for owner, prompt, answer, key in history:
        both.remember(owner, prompt, answer, key)
        if owner == "ann":
            alone.remember(owner, prompt, answer, key)
    for _, prompt, answer, _ in history:
        for n in range(len(prompt) + len(answer) + 1):
            asked = (prompt + answer)[:n]
            assert both.certain("ann", asked, KEY) == alone.certain("ann", asked, KEY)
            assert both.expected("ann", asked, 100) == alone.expected("ann", asked, 100)
    assert [text[:] for text in both.texts("ann")] == [text[:] for text in alone.texts("ann")]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), TOKENS, TOKENS, st.sampled_from([KEY, None])), max_size=30),
    st.integers(0, 3000),
)
def test_memory_is_bounded(history: list[tuple[str, list[int], list[int], str | None]], most_bytes: int) -> None:
    past = some_past(most_bytes)
    for owner, prompt, answer, key in history:
        past.remember(owner, prompt, answer, key)
        assert past.n_bytes <= most_bytes
    texts = [text for owner in "abcd" for text in past.texts(owner)]
    assert past.n_bytes == sum(OVERHEAD + 4 * len(text) for text in texts)
    for owner in "abcde":
        past.forget(owner)
    assert past.n_bytes == 0
    assert not any(past.texts(owner) for owner in "abcd")


def test_an_owner_that_floods_costs_another_nothing() -> None:
    past = some_past(10 * (OVERHEAD + 8))
    past.remember("bob", [2], [3], KEY)
    for token in range(2, 100):
        past.remember("ann", [token], [3], KEY)
    assert past.certain("bob", [2], KEY) == [3]
    assert past.n_bytes == 10 * (OVERHEAD + 8)
    assert past.certain("ann", [99], KEY) == [3]
    assert past.certain("ann", [90], KEY) == []


def test_each_owner_and_the_owners_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    past = some_past()
    for token in range(past_answers.MAX_SEQUENCES + 5):
        past.remember("ann", [token + 2], [3], KEY)
    assert past.n_bytes == past_answers.MAX_SEQUENCES * (OVERHEAD + 8)
    monkeypatch.setattr(past_answers, "MAX_OWNERS", 2)
    past.remember("bob", [2], [3], KEY)
    assert past.certain("ann", [60], KEY) == [3]  # used: bob is the least recently used now
    past.remember("cid", [2], [3], KEY)
    assert past.certain("bob", [2], KEY) == []
    assert past.certain("ann", [60], KEY) == past.certain("cid", [2], KEY) == [3]
    monkeypatch.setattr(past_answers, "MAX_OWNER_BYTES", OVERHEAD + 4 * 20)
    past.remember("ann", [5] * 19, [3], KEY)
    past.remember("ann", [6] * 20, [3], KEY)
    assert [text[:] for text in past.texts("ann")] == [[5] * 19 + [3]]


def test_the_comparison_of_bytes_is_limited() -> None:
    past = some_past()
    past.remember("ann", [7] * 2000, [3], KEY)
    assert past.expected("ann", [2, 6] * 100, 2) == [7, 7]
    assert past.expected("ann", [2, 6] * 1000, 2) == []
    assert past.expected("ann", [7] * 2000, 2) == [3]


# -- lookup ------------------------------------------------------------------------------------------------------------


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
