"""The evidence of a client's session, from its requests and from the server's log."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.clients.proxy import Exchange
from tests.clients.session import is_long_turn
from tests.clients.steering import SAID, tool_results
from tests.support.http_process import SOON, ServerProcess

CANCELLED = r"request {} cancelled \((?P<reason>[^)]+)\) in (?P<phase>\w+) after .*, stopped in (?P<ms>[\d.]+) ms"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the table."""

    n_requests: int
    refused: tuple[str, ...]  # requests with another status than 200, and what the server said
    n_events: int  # most of one stream
    has_used_tool: bool
    log_line: str | None  # of the cancel; None if there is none
    reason: str
    phase: str
    stopped_ms: float  # from the server's noticing to the end of the computation
    seconds: float  # from the key, or the close, to the end of the computation

    @property
    def faults(self) -> list[str]:
        found = [f"refused: {text}" for text in self.refused]
        if not self.n_requests:
            found.append("sent nothing")
        if self.n_events < 3:
            found.append("did not stream")
        if not self.has_used_tool:
            found.append("used no tool")
        if self.log_line is None:
            found.append("was not cancelled")
        elif self.reason != "disconnect" or self.seconds > SOON:
            found.append(f"cancelled by {self.reason} after {self.seconds:.1f} s")
        return found


def evidence(exchanges: Sequence[Exchange], server: ServerProcess, left_at: float) -> Evidence:
    generating = [exchange for exchange in exchanges if exchange.method == "POST" and exchange.body]
    turns = [exchange for exchange in generating if is_long_turn(exchange)]
    line = re.search(CANCELLED.format(re.escape(turns[-1].id)), server.log) if turns else None
    seconds = 0.0
    if line is not None:
        seen = server.request(turns[-1].id)
        seconds = seen["created"] + seen["seconds"] - left_at
    return Evidence(
        n_requests=len(generating),
        refused=tuple(refusal(one) for one in generating if one.status not in {200, None}),
        n_events=max((one.n_events for one in generating), default=0),
        has_used_tool=any(has_result(one) for one in generating),
        log_line=line and line[0],
        reason=line["reason"] if line else "",
        phase=line["phase"] if line else "",
        stopped_ms=float(line["ms"]) if line else 0.0,
        seconds=seconds,
    )


def has_result(exchange: Exchange) -> bool:
    body = exchange.body or {}
    return SAID in json.dumps(tool_results(body.get("messages", body.get("input", []))))


def refusal(exchange: Exchange) -> str:
    text = exchange.answer.partition(b"\r\n\r\n")[2][:300].decode(errors="replace")
    return f"{exchange.path} {exchange.status} {text}"


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
