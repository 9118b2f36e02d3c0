"""A check of the replicas before anything is started: each must answer, be a server of ours, and serve the same as the
others.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

from pyllmcancel.cluster.places import Replica
from pyllmcancel.errors import UsageError

SECONDS = 5.0  # the time limit of each answer
MAX_BYTES = 8 << 20  # the size limit of an answer, which includes a chat template
AT_ONCE = 16
OURS = "pyllmcancel-"


class NoAnswer(Exception):  # noqa: N818 - reads as the event it is
    """The address gives no answer, or an invalid one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a replica gives about itself."""

    version: str
    model: str
    size: str  # of the model: parameters and bytes
    context: int  # in tokens
    slots: int
    asks_for_keys: bool


# Differences that would show in the answers, in the order of the report.
COMPARED = {
    "version": "is pyllmcancel",
    "model": "serves the model",
    "size": "serves a model of",
    "context": "has a context of",
    "asks_for_keys": "asks for API keys:",
}
assert COMPARED.keys() < {field.name for field in fields(Facts)}


def look_at_all(replicas: Sequence[Replica], key: str | None) -> list[Facts]:
    """Return the facts that each replica gives about itself.

    Raises
    ------
    UsageError
        A replica is missing or differs from the others; the message names each of them.
    """
    with ThreadPoolExecutor(AT_ONCE, "pyllmcancel-look") as threads:
        found = list(threads.map(lambda one: looked_at(one, key), replicas))
    wrong = [one for one in found if isinstance(one, str)]
    if wrong:
        raise UsageError("; ".join(wrong))
    facts = [one for one in found if isinstance(one, Facts)]
    check_alike(replicas, facts)
    return facts


def check_alike(replicas: Sequence[Replica], facts: Sequence[Facts]) -> None:
    """Raise UsageError for the first replica that differs from the first one."""
    for one, said in zip(replicas[1:], facts[1:], strict=True):
        for name, text in COMPARED.items():
            mine, first = getattr(said, name), getattr(facts[0], name)
            if mine != first:
                other = replicas[0].name
                raise UsageError(f"the replicas differ: {one.name} {text} {told(mine)}, and {other} {told(first)}")


def told(fact: object) -> str:
    return {True: "yes", False: "no"}[fact] if isinstance(fact, bool) else str(fact)


def looked_at(replica: Replica, key: str | None) -> Facts | str:
    """Return a replica's facts, or what is wrong with it."""
    try:
        return look(replica, key)
    except NoAnswer as error:
        return f"{replica.name} ({replica.address}) {error}"


def look(replica: Replica, key: str | None) -> Facts:
    """Return the facts; NoAnswer if it is not a server of ours that can serve."""
    status, health = ask(replica, "/health", None)
    if status == 503 and health.get("status") in ("loading", "failed", "stalled", "draining"):
        raise NoAnswer(f"cannot serve now: it is {health['status']}")
    if status != 200:
        raise NoAnswer(f"is not a server of pyllmcancel: /health answered {status}")
    open_status, models = ask(replica, "/v1/models", None)
    if open_status == 401:
        if key is None:
            raise NoAnswer("asks for an API key: give one with --api-key for this check")
        status, models = ask(replica, "/v1/models", key)
        if status == 401:
            raise NoAnswer("refuses the API key")
    _, props = ask(replica, "/props", key)
    build = props.get("build_info")
    if not isinstance(build, str) or not build.startswith(OURS):
        raise NoAnswer("is not a server of pyllmcancel")
    try:
        model = models["data"][0]
        meta = model["meta"]
        size = f"{int(meta['n_params']):,} parameters in {int(meta['size']):,} bytes"
        slots = int(props["total_slots"])
        return Facts(build.removeprefix(OURS), str(model["id"]), size, int(meta["n_ctx"]), slots, open_status == 401)
    except (LookupError, TypeError, ValueError):
        raise NoAnswer("does not report its model") from None


def ask(replica: Replica, path: str, key: str | None) -> tuple[int, Mapping[str, Any]]:
    """Return the status and the JSON object of the answer, an empty one if it is not an object."""
    connection = http.client.HTTPConnection(replica.host, replica.port, timeout=SECONDS)
    # As in the balancer's checks: a replica need not have the name by which it is reached.
    headers = {"Host": "localhost"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MAX_BYTES)
    except TimeoutError:
        raise NoAnswer(f"does not answer within {SECONDS:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or repr(error)
        raise NoAnswer(f"does not answer: {reason.lower()}") from None
    finally:
        connection.close()
    try:
        found = json.loads(body)
    except ValueError:
        return answer.status, {}
    return answer.status, found if isinstance(found, dict) else {}
