"""A server of several models for real programs, with room for one: three models, and a file that is none.

When a program's user stops an answer, the time is taken from the key or the click to the end of the computation.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.model import ENVIRONMENT, PACKAGED_MODEL
from tests.support.http_process import ServerProcess, until

PATIENCE = 300.0  # seconds for a load and an answer on a busy machine
CODER, BROKEN = "stdlib-coder", "broken"


@dataclass(frozen=True, slots=True)
class Stop:
    """A request that was stopped: where it was, and the milliseconds after the key or the click."""

    phase: str
    prompt_tokens: int
    tokens: int
    noticed_ms: float
    ended_ms: float

    def row(self, what: str) -> str:
        return (
            f"| {what} | {self.phase} | {self.prompt_tokens:,} | {self.tokens} | {self.noticed_ms:.0f}"
            f" | {self.ended_ms:.0f} |"
        )


HEAD = (
    "| stopped | phase | prompt tokens | tokens | ms until the server noticed | until the computation ended |\n"
    f"{'|---' * 6}|"
)


@contextmanager
def serving_several(folder: Path, models: Sequence[Path], *options: str) -> Iterator[ServerProcess]:
    """Serve these models, the packaged one and the broken one from `folder`."""
    for model in (PACKAGED_MODEL, *models):
        (folder / model.name).symlink_to(model.resolve())
    (folder / f"{BROKEN}.gguf").write_bytes(b"this is no model")
    given = ("--models-dir", str(folder), "--models-max", "1", *options)
    with ServerProcess(*given, environment=ENVIRONMENT) as server:
        yield server.started()


def state_of(server: ServerProcess, model: str) -> str:
    status = server.http.get(f"/v1/models/{model}").json()["status"]
    return "failed" if status.get("failed") else str(status["value"])


def until_state(server: ServerProcess, model: str, state: str) -> None:
    until(lambda: state_of(server, model), lambda found: found == state, PATIENCE)


def until_asked(server: ServerProcess, accept: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait until a request is live that is as it should be; of several, return the last."""

    def found() -> list[dict[str, Any]]:
        answer = server.http.get("/v1/requests")
        listed = answer.json()["data"] if answer.status_code == 200 else []  # while a model's process ends
        return [one for one in listed if one["status"] in {"waiting", "running"} and accept(one)]

    return max(until(found, len, PATIENCE), key=lambda one: one["created"])


def stop_of(server: ServerProcess, request_id: str, pressed: float) -> Stop:
    """Return how a request ended after `pressed`, by the wall clock."""
    seen = server.wait_for(request_id, status="cancelled")
    assert seen["cancel_reason"] == "disconnect", seen
    times, offset = seen["times"], time.time() - time.monotonic()
    noticed, ended = ((times[name] + offset - pressed) * 1e3 for name in ("cancelled", "ended"))
    return Stop(seen["phase"], seen["prompt_tokens"], seen["completion_tokens"], noticed, ended)


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
