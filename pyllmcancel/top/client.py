"""A server's requests and figures, cancels of its requests, and its errors in a sentence."""

from __future__ import annotations

import json
import ssl
import time
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from prometheus_client.parser import text_string_to_metric_families

SECONDS = 10.0
CANCEL_SECONDS = 30.0  # the answer comes when the computation has stopped
STRANGE = "its answers were not understood: is it a pyllmcancel of this version?"


LONGEST = 400  # characters of a name; a longer one could only be cut
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"})
INSTEAD = "\N{REPLACEMENT CHARACTER}"


def plain(text: object) -> str:
    """Return text from the network without anything that a terminal obeys: escapes, line feeds, changes of direction.

    Marks that have no cell of their own are replaced, too: any number of them can be piled upon one.
    """
    composed = unicodedata.normalize("NFC", str(text)[:LONGEST])
    return "".join(INSTEAD if unicodedata.category(character) in UNSEEN else character for character in composed)


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def duration(seconds: float) -> str:
    """Return a duration: ``0.4 s``, ``12 s``, ``3:05``, ``2 h 10``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02}"


def read_json(text: str | bytes) -> Any:
    """Return the JSON; None if the bytes are not JSON, or are nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class ServerError(Exception):
    """The server gave no answer of any use; the message says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one moment, on this process's monotonic clock.

    `requests` are the entries of ``/v1/requests``: live ones, oldest first, then ended ones, newest first. `metrics`
    are sums over all labels, without the prefix of their names; none if the key may not read them. `names` are
    the versions and models, `unreached` the replicas that did not answer, and why.
    """

    requests: list[dict[str, Any]]
    metrics: dict[str, float]
    names: list[str]
    unreached: list[str]
    moment: float


def open_client(url: str, api_key: str) -> httpx.Client:
    """Return a client of the server at `url`, with or without ``/v1``; ServerError if `url` is not an address."""
    try:
        parsed = httpx.URL(url if "://" in url else f"http://{url}")
        parsed = parsed.copy_with(path=parsed.path.rstrip("/").removesuffix("/v1"), query=None, fragment=None)
    except httpx.InvalidURL as error:
        raise ServerError(f"--url {plain(url)} is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ServerError(f"--url {plain(url)} is not a server's address, such as http://127.0.0.1:8000")
    if not api_key.isascii():
        raise ServerError("--api-key contains characters that a header cannot carry")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=parsed, headers=headers, timeout=SECONDS)


# -- reading -----------------------------------------------------------------------------------------------------------


def read(client: httpx.Client) -> Reading:
    """Ask for the requests and the figures; ServerError if there is no answer of any use."""
    listed = read_json(answered(client, "v1/requests").content)
    try:
        requests = [dict(entry) for entry in listed["data"]]
        unreached = [f"{plain(one['replica'])}: {plain(one['why'])}" for one in listed.get("unreached") or ()]
        metrics, names = metrics_of(answered(client, "metrics", none_if=403).text)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ServerError(f"{client.base_url}: {STRANGE}") from None
    return Reading(requests, metrics, names, unreached, time.monotonic())


def answered(client: httpx.Client, path: str, none_if: int | None = None) -> httpx.Response:
    """Return the answer; with the status `none_if` an empty one. ServerError if it is an error."""
    try:
        answer = client.get(path)
    except httpx.RequestError as error:
        raise ServerError(f"{client.base_url}: {reason_of(error)}") from error
    if answer.status_code == none_if:
        return httpx.Response(answer.status_code)
    if answer.status_code != 200:
        raise ServerError(f"{answer.url.host} answers {answer.status_code}: {plain(advice(answer))}")
    return answer


def advice(answer: httpx.Response) -> str:
    """Return why the server refuses, or what helps."""
    match answer.status_code:
        case 401:
            return "give its API key with --api-key KEY, or in PYLLMCANCEL_API_KEY"
        case 301 | 302 | 303 | 307 | 308:
            # Not followed: the key would go to wherever the redirect leads.
            return f"it has moved to {answer.headers.get('location')}: name that with --url"
        case 404 | 405:
            return "is it a pyllmcancel? --url names another"
        case _:
            return message_in(answer.content) or answer.reason_phrase


def metrics_of(text: str) -> tuple[dict[str, float], list[str]]:
    """Return the sums of the metrics, and the versions and models."""
    sums: defaultdict[str, float] = defaultdict(float)
    names: dict[str, None] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            sums[name.removeprefix("pyllmcancel_")] += value
            if name in ("pyllmcancel_build_info", "pyllmcancel_model_info"):
                names[plain(labels.get("version") or labels.get("name"))] = None
    return dict(sums), list(names)


def message_in(body: bytes) -> str:
    """Return the message of an error in one of the APIs' shapes; "" if there is none."""
    match read_json(body):
        case {"error": {"message": str(message)}} | {"error": str(message)}:
            return plain(message)
    return ""


def reason_of(error: Exception) -> str:
    """Return why there is no answer, in a few words."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in causes):
        return "its certificate is not trusted; SSL_CERT_FILE=FILE names one to trust"
    if any(isinstance(one, ConnectionRefusedError) for one in causes):
        return "connection refused; start a server with `pyllmcancel serve`, or name another"
    match error:
        case httpx.TimeoutException():
            return "no answer in time"
        case httpx.ConnectError():
            return plain(causes[-1]).lower()
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return "it does not speak HTTP" if "illegal" in str(error) else "the connection broke"
        case _:
            return plain(error)


# -- cancels -----------------------------------------------------------------------------------------------------------


def cancel(client: httpx.Client, kind: str, name: str, owner: str) -> str:
    """Cancel a request or a session (`kind`), wait until its computation has stopped, and return the result in words.

    `owner` is named for an administrator's key: several owners may have this id or session name.
    """
    try:
        # The name is one part of the path: clients choose names, which may contain dots and slashes.
        path = f"v1/{kind}/{quote(name, safe='').replace('.', '%2E')}/cancel"
        answer = client.post(path, params={"owner": owner} if owner else None, timeout=CANCEL_SECONDS)
    except (UnicodeEncodeError, httpx.InvalidURL):
        return "not cancelled: its name does not fit into an address"
    except httpx.TimeoutException:
        return f"no answer in {CANCEL_SECONDS:.0f} s: it may or may not be cancelled"
    except httpx.RequestError as error:
        return f"not cancelled: {reason_of(error)}"
    found = read_json(answer.content) if answer.is_success else None
    match found:
        case {"requests": list(several)}:
            done = "; ".join(result(one) for one in several) or "nothing was live"
        case {"outcome": _}:
            done = result(found)
        case _:
            said = message_in(answer.content) or plain(answer.reason_phrase)
            return f"not cancelled: {answer.status_code}: {said}"
    return f"{plain(name)}: {done}"


def result(answer: Any) -> str:
    """Return a cancel's answer in words."""
    match answer:
        case {"outcome": "cancelled", "phase": phase, "cancel_latency_ms": int() | float() as latency}:
            return f"compute stopped after {milliseconds(latency)}, in {plain(phase)}"
        case {"outcome": "already_finished", "reason": reason}:
            return f"it had ended already ({plain(reason)})"
    return "cancelled"
