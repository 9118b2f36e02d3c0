"""Reading the feed, with new attempts after broken connections and restarts of the server."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from pyllmcancel.sse import BrokenFeedError, EventDecoder, ServerEvent
from pyllmcancel.top.text import plain
from pyllmcancel.top.values import read_json

PATH = "v1/events"
# A comment comes every 15 s unless the server is configured otherwise; resuming by the last event's id costs little.
SILENCE = 60.0
CONNECT = 10.0
FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0
COMES_BACK = frozenset({429, 500, 502, 503, 504})  # of a server that starts, or of a proxy before one
LONGEST_ERROR = 16_384  # bytes of an answer that is an error


class FeedError(Exception):
    """There is nothing to read, and trying again does not help; the message says what does."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The server answers with events."""


@dataclass(frozen=True, slots=True)
class Lost:
    """There is no feed, with the reason, and the seconds until the next try."""

    why: str
    wait: float


Happening = ServerEvent | Connected | Lost
Tell = Callable[[Happening], None]


class NotNowError(Exception):
    """The server, or a proxy before it, asks to come back later."""

    def __init__(self, why: str, wait: float) -> None:
        super().__init__(why)
        self.wait = wait


class Feed:
    """Reads ``GET /v1/events``; after a break it resumes after the last event.

    Parameters
    ----------
    patient
        True to wait for a server that was never reached; otherwise that is a FeedError.
    """

    def __init__(self, client: httpx.AsyncClient, *, patient: bool = False) -> None:
        self._client = client
        self._patient = patient
        self._last_id = ""
        self._n_failed = 0  # in a row

    async def follow(self, tell: Tell) -> None:
        """Iterate over all events, until cancelled; FeedError if that is impossible."""
        while True:
            least = 0.0
            try:
                await self._read(tell)
                why = "the server closed the feed"
            except NotNowError as error:
                why, least = str(error), error.wait
            except (httpx.TransportError, BrokenFeedError) as error:
                why = reason_of(error)
                if not self._patient:
                    raise FeedError(f"cannot reach {self._client.base_url}: {why}; {advice(error)}") from None
            wait = max(least, self._back_off())
            tell(Lost(why, wait))
            await asyncio.sleep(wait)

    async def _read(self, tell: Tell) -> None:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-store"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        limits = httpx.Timeout(SILENCE, connect=CONNECT)
        async with self._client.stream("GET", PATH, headers=headers, timeout=limits) as answer:
            self._patient = True  # from here on there was a server
            await check(answer)
            tell(Connected())
            decoder = EventDecoder()
            async for data in answer.aiter_raw():
                for event in decoder.feed(data):
                    self._last_id = event.id or self._last_id
                    self._n_failed = 0
                    tell(event)

    def _back_off(self) -> float:
        """Wait twice as long each time, with a random part, so that clients of one server spread out."""
        longest: float = min(FIRST_WAIT * 2**self._n_failed, LONGEST_WAIT)
        self._n_failed = min(self._n_failed + 1, 10)
        return longest * random.uniform(0.5, 1.0)


async def check(answer: httpx.Response) -> None:
    """Raise FeedError or NotNowError for an answer that is not a feed."""
    url, status = answer.request.url, answer.status_code
    is_feed = answer.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream"
    if status == 200 and is_feed:
        return
    said = await error_message(answer)
    if status in COMES_BACK:
        raise NotNowError(f"{status}: {said}", retry_after(answer))
    match status:
        case 401:
            sent = answer.request.headers.get("authorization")
            why = "does not know this API key" if sent else "wants an API key"
            raise FeedError(f"{url.host} {why}: give one with --api-key KEY, or in PYLLMCANCEL_API_KEY")
        case 403:
            raise FeedError(f"{url.host} refuses: {said}")
        case 301 | 302 | 303 | 307 | 308:
            # Not followed: the key would go to wherever the redirect leads.
            target = plain(answer.headers.get("location", "nowhere"))
            raise FeedError(f"{url.host} has moved to {target}: name that with --url")
        case 200 | 404 | 405 | 406 | 410:
            raise FeedError(f"there is no feed at {url}: is it a pyllmcancel that has /v1/events? --url names another")
        case _:
            raise FeedError(f"{url} answers {status}: {said}")


async def error_message(answer: httpx.Response) -> str:
    """Return the text of an error's body, in one line."""
    body = b""
    async for data in answer.aiter_raw():
        body += data
        if len(body) >= LONGEST_ERROR:
            break
    return message_in(body) or answer.reason_phrase or "no reason"


def message_in(body: bytes | bytearray) -> str:
    """Return the message of an error in one of the APIs' shapes; "" if there is none."""
    found = read_json(body)
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return plain(message) if isinstance(message, str) else ""


def retry_after(answer: httpx.Response) -> float:
    try:
        return min(max(0.0, float(answer.headers.get("retry-after", 0))), LONGEST_WAIT)
    except ValueError:
        return 0.0


def reason_of(error: Exception) -> str:
    """Return why a connection failed, in a few words."""
    match error:
        case httpx.ConnectTimeout():
            return f"no answer in {CONNECT:.0f} s"
        case httpx.ReadTimeout():
            return f"no data for {SILENCE:.0f} s"
        case httpx.UnsupportedProtocol():
            return "an address begins with http:// or https://"
        case httpx.ConnectError():
            return plain(causes(error)[-1]).lower() if not is_refusal(error) else "connection refused"
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return "it does not speak HTTP" if "illegal" in str(error) else "the connection broke"
        case _:
            return plain(error)


def causes(error: BaseException) -> list[BaseException]:
    """Iterate over the error and its causes."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None:
        found.append(cause)
    return found


def is_refusal(error: Exception) -> bool:
    return any(isinstance(cause, ConnectionRefusedError) for cause in causes(error))


def advice(error: Exception) -> str:
    """Return what the user can do about the error."""
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error)):
        return "SSL_CERT_FILE=FILE names a certificate to trust"
    return "start one with `pyllmcancel serve`, or name another with --url"
