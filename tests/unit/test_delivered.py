"""The part of an answer that was delivered, as the front counts it and as the server that goes on reads it."""

import pytest

from pyllmcancel.events import Delta, FinishReason
from pyllmcancel.server.delivered import ALL, DELTAS, FAILURE, HIDDEN, NOTHING, OPENING, Delivered, Marks, Promise

PROMISE = Promise("digest", 1, 2, 3.0)


def told(index: int, *tokens: int) -> Delta:
    return Delta(index, "", tokens)


def delivered() -> Delivered:
    found = Delivered()
    found.promise = PROMISE
    return found


def test_a_mark_counts_when_its_bytes_have_come() -> None:
    front, marks = delivered(), Marks(None)
    front.note_mark(marks.mark(OPENING, 4))
    front.note_mark(marks.mark(DELTAS, 6, [told(0, 7), told(1, 8)]))
    assert (front.part, list(front.known(0))) == (NOTHING, [])
    front.add(b"open")
    assert (front.part, front.can_go_on) == (OPENING, True)
    front.add(b"piece")
    assert not front.can_go_on  # in the middle of an event
    front.add(b"s")
    assert (front.part, list(front.known(0)), list(front.known(1))) == (DELTAS, [7], [8])
    assert front.can_go_on


def test_the_token_that_ends_an_answer_is_no_known_one() -> None:
    front, marks = delivered(), Marks(None)
    front.note_mark(marks.mark(DELTAS, 0, [told(0, 5), Delta(0, "", finish_reason=FinishReason.STOP)]))
    assert list(front.tokens[0]) == [5, HIDDEN]
    assert list(front.known(0)) == [5]


def test_an_error_is_no_part_of_what_may_be_delivered() -> None:
    front, marks = delivered(), Marks(None)
    assert not front.note_mark(marks.mark(DELTAS, 4, [told(0, 5)]))
    assert front.note_mark(marks.mark(FAILURE, 5))
    assert front.without_failure(b"texterror") == (b"text", b"error")
    front.add(b"text")
    assert front.without_failure(b"error") == (b"", b"error")
    front.lose_rest()
    assert front.without_failure(b"more") == (b"more", b"")
    assert front.can_go_on


def test_bytes_that_were_lost_are_marked_again() -> None:
    front, marks = delivered(), Marks(None)
    front.note_mark(marks.mark(OPENING, 4))
    front.add(b"open")
    front.note_mark(marks.mark(DELTAS, 6, [told(0, 7)]))
    front.lose_rest()
    later = Marks(Delivered.read(front.as_head()))
    front.note_mark(later.mark(DELTAS, 6, [told(0, 7)]))
    front.add(b"pieces")
    assert list(front.known(0)) == [7]


@pytest.mark.parametrize("server", ["digest", None])
def test_only_a_promised_answer_goes_on_in_its_middle(server: str | None) -> None:
    front, marks = delivered(), Marks(None)
    front.promise = PROMISE._replace(server=server)
    assert front.can_go_on  # from its start
    assert bool(front.as_head()) is (server is not None)
    front.note_mark(marks.mark(OPENING, 1))
    front.add(b"o")
    assert front.can_go_on is (server is not None)


def test_the_next_server_tells_only_what_is_new() -> None:
    front, marks = delivered(), Marks(None)
    front.note_mark(marks.mark(OPENING, 0))
    front.note_mark(marks.mark(DELTAS, 0, [told(0, 7), told(1, 8), told(0, 9)]))
    later = Marks(Delivered.read(front.as_head()))
    assert later.has(OPENING)
    assert not later.has(DELTAS)
    assert not later.has(ALL)
    progress = Delta(0, "", prompt_done=3)
    seen = [progress, told(1, 8), told(0, 7), told(1, 6), told(0, 9), told(0, 4), Delta(2, "", prompt_done=3)]
    assert [later.is_new(one) for one in seen] == [False, False, False, True, False, True, True]


@pytest.mark.parametrize("head", [b"", b"[]", b"[1,2,3,4]", b'[0,0,{"a":[1]},null]', b'[0,0,{"0":[99999999999]},null]'])
def test_anything_else_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Delivered.read(head)
