"""Forms with files: what is read is what was sent, and whatever is no form is refused."""

from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.forms import form_fields

NAMES = st.text("abcd_", min_size=1, max_size=8)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def sent(fields: dict[str, str | list[str]], content: bytes) -> tuple[bytes, bytes]:
    """Return a form, with a file in it, and its boundary."""
    request = httpx.Request("POST", "http://x", data=fields, files={"a file": ('é"\r\n', content)})
    return request.read(), request.headers["content-type"].partition("boundary=")[2].encode()


@given(fields=st.dictionaries(NAMES, TEXTS, max_size=5), listed=st.lists(TEXTS, max_size=4), content=st.binary())
def test_a_form_is_read_as_it_was_sent(fields: dict[str, str], listed: list[str], content: bytes) -> None:
    expected = fields | {"a file": content} | ({"listed": listed} if listed else {})
    assert form_fields(*sent(fields | {"listed[]": listed}, content)) == expected


@given(data=st.data(), content=st.binary())
def test_a_damaged_form_is_read_or_refused(data: st.DataObject, content: bytes) -> None:
    whole, boundary = sent({"model": "m"}, content)
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for at in data.draw(st.lists(st.integers(0, len(whole)), max_size=3)):
        if at < len(damaged):
            damaged[at] = data.draw(st.integers(0, 255))
    with suppress(ApiError):  # any other error fails the test
        form_fields(bytes(damaged), boundary)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_form_that_is_cut_short_is_refused(cut: int) -> None:
    whole, boundary = sent({"model": "m"}, b"content")
    with pytest.raises(ApiError, match="cut short"):
        form_fields(whole[: -cut - 4], boundary)


def test_a_boundary_that_the_parser_refuses_is_an_error_of_the_form() -> None:
    with pytest.raises(ApiError, match="the form is invalid"):
        form_fields(b"--" + b"x" * 300, b"x" * 300)
