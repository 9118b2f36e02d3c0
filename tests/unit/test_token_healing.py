"""Token healing: the last word of a prompt is taken back, and the answer begins with it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.constraints.healing import MAX_GIVEN_BACK, HealingConstraint, PieceIndex, give_back
from pyllmcancel.constraints.protocol import allows, masks_along
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.events import FinishReason
from tests.support.driver import Driver, MakeDriver
from tests.unit.test_generation_params import Spelling

PIECES = [
    *(b"", b"w", b"wr", b"wrap", b" wrap", b"_", b"whi", b"white", b"whitespace", b"h"),
    *(b"\n", b"\n    ", b"\xc3", b"\xa9"),
]
FIM = {"fim_pre": 14, "fim_suf": 15, "fim_mid": 16}


class Vocabulary:
    """A model as far as healing looks at it."""

    special_tokens = FIM

    def pieces(self, *, special: bool = False) -> list[bytes]:
        return [self.piece(token) for token in range(len(PIECES) + 3)]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return PIECES[token] if token < len(PIECES) else b""


def tokens(*pieces: bytes) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("kept", "given_back"),
    [
        ([b"wrap"], [b"_", b"whi"]),
        ([b"\n"], [b" wrap"]),
        ([b"wrap"], [b"\n"]),
        ([b"\n", b"w"], [b"w"] * MAX_GIVEN_BACK),
        ([b"wrap"], []),  # the last token of a prompt is kept
        ([b"wrap", b""], []),  # a control token
        ([b"_"], [b"\xc3", b"\xa9"]),
    ],
)
def test_a_prompt_gives_its_last_word_back(kept: list[bytes], given_back: list[bytes]) -> None:
    healed = give_back(tokens(*kept, *given_back), Vocabulary())
    assert (list(healed.prompt), healed.text) == (tokens(*kept), b"".join(given_back))


def test_before_a_gap_the_last_word_before_it_is_given_back() -> None:
    before, behind = tokens(b"\n", b"_", b"wrap"), tokens(b"h")
    prompt = [FIM["fim_pre"], *before, FIM["fim_suf"], *behind, FIM["fim_mid"]]
    healed = give_back(prompt, Vocabulary())
    assert healed.text == b"_wrap"
    assert healed.prompt == [FIM["fim_pre"], *before[:1], FIM["fim_suf"], *behind, FIM["fim_mid"]]


@given(st.binary(max_size=4).map(lambda tail: b"whi" + tail) | st.sampled_from(PIECES[1:]))
def test_the_tokens_that_go_along_a_text(text: bytes) -> None:
    mask = PieceIndex(Vocabulary()).along(text)
    for token in range(len(PIECES)):
        piece = PIECES[token]
        goes_along = bool(piece) and (piece.startswith(text) or text.startswith(piece))
        assert allows(mask, token) == goes_along, piece


class CountedPieces(list[bytes]):
    n_read = 0

    def __getitem__(self, token: Any) -> Any:
        self.n_read += 1
        return super().__getitem__(token)


class LargeVocabulary(Vocabulary):
    def __init__(self, pieces: CountedPieces) -> None:
        self._pieces = pieces

    def pieces(self, *, special: bool = False) -> list[bytes]:
        return self._pieces


@pytest.mark.parametrize("text", [b" ", b" 1", b" 1234"])
def test_a_text_that_much_of_the_vocabulary_begins_with_is_found_quickly(text: bytes) -> None:
    pieces = CountedPieces(b" %d" % number for number in range(50_000))
    index = PieceIndex(LargeVocabulary(pieces))
    pieces.n_read = 0
    mask = index.along(text)
    assert pieces.n_read < 200
    for token, piece in enumerate(pieces):
        assert allows(mask, token) == (piece.startswith(text) or text.startswith(piece))


def test_the_text_is_spelled_token_by_token_and_then_everything_is_allowed() -> None:
    index, piece = PieceIndex(Vocabulary()), Vocabulary().piece
    constraint = HealingConstraint(index, piece, b"white")
    assert not allows(constraint.mask(), *tokens(b"wrap"))
    fork = constraint.fork()
    fork.accept(*tokens(b"whitespace"))
    assert (fork.mask(), fork.n_tokens) == (None, 1)
    constraint.accept(*tokens(b"w"))
    assert allows(constraint.mask(), *tokens(b"h"))
    assert not allows(constraint.mask(), *tokens(b"w"))
    constraint.accept(*tokens(b"h"))
    masks = masks_along(HealingConstraint(index, piece, b"whi"), tokens(b"whi", b"_", b"w"))
    assert [mask is None for mask in masks] == [False, True, True, True]


def test_an_answer_begins_after_the_prompts_text(driver: Driver) -> None:
    """In the fake vocabulary each byte is a token: four are taken back, and written again."""
    driver.model.answers[b"the "] = b"word and more"
    tracked = driver.answered("the word", token_healing=True, max_tokens=13, expected=b"word and more")
    assert (tracked.sink.text(), tracked.ending.finish_reason) == (" and more", FinishReason.LENGTH)


def test_the_answer_has_to_begin_with_the_text(driver: Driver) -> None:
    driver.model.answers[b"the "] = b"other"
    tracked = driver.submit("the word", token_healing=True, max_tokens=6)
    tracked.expected = [*b"word", *driver.model.greedy(list(b"the word"), 2)]
    driver.run_to_the_end()
    assert tracked.sink.text().encode("utf-8", "replace")[:1] != b"w"


@pytest.mark.parametrize(("banned", "n_given_back"), [(b"d", 0), (b"o", 2), (b"w", 3), (b"x", 4)])
def test_what_the_answer_may_not_spell_is_not_taken_back(driver: Driver, banned: bytes, n_given_back: int) -> None:
    tracked = driver.submit("the word", token_healing=True, max_tokens=6, logit_bias=((banned[0], float("-inf")),))
    driver.run_to_the_end()
    tracked.expected = tracked.sink.tokens()
    assert tracked.ending.finish_reason is FinishReason.LENGTH
    assert tracked.ending.usage.prompt_tokens == len("the word") - n_given_back


def test_whoever_types_along_a_suggestion_waits_for_no_step(make_driver: MakeDriver) -> None:
    driver = make_driver(draft_sources=("past",))
    suggestion = b"return the value of it"
    driver.model.answers[b"def f():"] = b" " + suggestion
    first = driver.answered("def f(): ", token_healing=True, max_tokens=40, expected=b" " + suggestion)
    assert first.sink.text() == suggestion.decode()
    n_steps = len(driver.watcher.steps)
    for n_typed in range(1, len(suggestion)):
        typed = "def f(): " + suggestion[:n_typed].decode()
        tracked = driver.submit(typed, token_healing=True, max_tokens=40)
        tracked.expected = tracked.sink.tokens()
        assert tracked.sink.text() == suggestion[n_typed:].decode(), typed
    assert len(driver.watcher.steps) == n_steps


def test_what_follows_known_tokens_need_not_begin_with_the_text_again(make_driver: MakeDriver) -> None:
    """The prompt and the tokens that are known are computed in one step, and the next token is sampled in it."""
    driver = make_driver(draft_sources=("past",), parallel=1, spare_seqs=0, cache_ram=0)
    driver.model.answers[b"the "] = b"word and more"
    for max_tokens in (6, 13):
        answer = b"word and more"[:max_tokens]
        tracked = driver.answered("the word", token_healing=True, max_tokens=max_tokens, expected=answer)
        driver.answered("something else, which takes the slot")
    assert tracked.ending.usage.cached_tokens == 0


def test_what_was_forced_is_no_answer_of_the_models_own(make_driver: MakeDriver) -> None:
    """Without healing, the prompt that ended in mid-word gets what it would have got."""
    driver = make_driver(draft_sources=("past",))
    driver.model.answers[b"the "] = b"other"
    healed = driver.answered("the word", token_healing=True, max_tokens=8)
    healed.expected = healed.sink.tokens()
    assert driver.answered("the ", max_tokens=8).sink.text() == "other"


@pytest.mark.parametrize("heals", [False, True])
def test_the_configuration_decides_for_requests_that_leave_it_open(make_driver: MakeDriver, heals: bool) -> None:
    driver = make_driver(token_healing=heals)
    tracked = driver.answered("the word", token_healing=None, max_tokens=6)
    tracked.expected = tracked.sink.tokens()
    assert (tracked.expected[:4] == list(b"word")) == heals
    # Where it cannot be done, it is not.
    driver.answered("the word", token_healing=None, constraint=Spelling(b"yes"), max_tokens=6, expected=b"yes")


def test_healing_is_refused_where_it_cannot_be_done(driver: Driver) -> None:
    with pytest.raises(InvalidRequestError, match="form of the answer"):
        driver.submit("the word", token_healing=True, constraint=Spelling(b"yes"))
    with pytest.raises(InvalidRequestError, match="logprobs of the prompt"):
        driver.submit("the word", token_healing=True, prompt_logprobs=True, n_logprobs=0)
