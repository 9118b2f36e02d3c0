"""Messages to one other server over HTTP, its replies, and its feed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
from pydantic import ValidationError

from pyllmcancel.server.bodies import check_size
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.identity import KEY_HEADER, Envelope, ReplyEnvelope
from pyllmcancel.server.http.request_context import PEERS_PATH

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.addresses import Address

MAX_BYTES = 32 << 20  # of an answer
MAX_VALUES = 1_000_000  # of an answer: the entries of 16,000 requests
# Used for names that cannot be looked up, too.
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, UnicodeError, ValidationError)
SHOWN_BYTES = 200  # bytes of an answer that is an error
# Seconds without input from a feed. A comment comes every 15 s unless the peer is configured otherwise, and resuming
# costs little.
FEED_SILENCE = 60.0


class NoAnswer(Exception):  # noqa: N818 - reads as the event it is
    """The peer gave no answer, or an invalid one."""


class Declined(NoAnswer):
    """The peer is there, but refuses a message, for example because it has too many holds."""


class PeerClient:
    """Sends messages to one server. Used in the event loop only.

    Parameters
    ----------
    key
        The key that the peer expects; None: no key.
    """

    def __init__(self, address: Address, client: httpx.AsyncClient, key: str | None) -> None:
        self._url = f"{address.url}{PEERS_PATH}"
        self._client = client
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"} | (
            {} if key is None else {KEY_HEADER: key}
        )

    async def send(self, envelope: Envelope) -> ReplyEnvelope:
        """Return the reply to a message; NoAnswer or one of FAILURES if there is none.

        If a kept connection turns out to be closed, the message is sent again on a new one.
        """
        content = envelope.model_dump_json().encode()
        try:
            body = await self._post(content)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            body = await self._post(content)
        return answer_in(body)

    async def _post(self, content: bytes) -> bytes:
        async with self._client.stream("POST", self._url, content=content, headers=self._headers) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_BYTES:
                    raise NoAnswer(f"answered more than {MAX_BYTES:,} bytes")
        if response.status_code != 200:
            kind = Declined if 400 <= response.status_code < 500 else NoAnswer
            raise kind(f"answered with status {response.status_code}: {said_in(body)}")
        return bytes(body)

    @asynccontextmanager
    async def follow(self, envelope: Envelope, deadline: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Return the peer's feed, in pieces, as this message asks for it; NoAnswer or one of FAILURES if there is
        none.
        """
        content = envelope.model_dump_json().encode()
        patience = httpx.Timeout(deadline, read=FEED_SILENCE)
        async with self._client.stream(
            "POST", self._url, content=content, headers=self._headers, timeout=patience
        ) as response:
            if response.status_code != 200:
                body = await beginning_of(response)
                raise NoAnswer(f"answered with status {response.status_code}: {said_in(body)}")
            yield heard(response)


def answer_in(text: bytes) -> ReplyEnvelope:
    """Return the answer; NoAnswer or ValidationError if it is invalid. Values are counted first: a parser blocks the
    event loop until it is done.
    """
    try:
        check_size(text, MAX_VALUES)
    except ApiError:
        raise NoAnswer(f"answered more than {MAX_VALUES:,} values, or values nested too deeply") from None
    return ReplyEnvelope.model_validate_json(text)


async def heard(response: httpx.Response) -> AsyncIterator[bytes]:
    """Iterate over the pieces of a feed; NoAnswer if none comes for long, because the connection may be dead."""
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.ReadTimeout:
        raise NoAnswer(f"sent nothing for {FEED_SILENCE:g} s") from None


async def beginning_of(response: httpx.Response) -> bytes:
    """Return the beginning of the response's body, as much as the log shows."""
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) >= SHOWN_BYTES:
            break
    return body


def said_in(body: bytes | bytearray) -> str:
    """Return the beginning of a text that somebody else wrote, for a line of the log."""
    return ascii(bytes(body[:SHOWN_BYTES]).decode("utf-8", "replace"))


def reason_of(error: Exception, deadline: float) -> str:
    """Return why there is no answer, in words."""
    match error:
        case NoAnswer():
            return str(error)
        case TimeoutError() | httpx.TimeoutException():
            return f"does not answer in {deadline:g} s"
        case ValidationError():
            return "gave an invalid answer"
        case _:
            return f"does not answer ({type(error).__name__})"
