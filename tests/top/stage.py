"""A server whose answers are the test's."""

import json
from typing import Any

from tests.support import stub_server

Fields = dict[str, Any]
METRICS = """\
pyllmcancel_build_info{version="1.2.3"} 1.0
pyllmcancel_model_info{name="small-model"} 1.0
pyllmcancel_requests_waiting 1.0
pyllmcancel_slots 4.0
pyllmcancel_slots_used 2.0
pyllmcancel_cells 4096.0
pyllmcancel_cells_used 947.0
pyllmcancel_prompt_tokens_total 1000.0
pyllmcancel_generated_tokens_total 500.0
pyllmcancel_tokens_wasted_total 538.0
pyllmcancel_tokens_saved_total 5031.0
"""


def entry(request_id: str, **changed: Any) -> Fields:
    nothing = ("session", "supersede", "finish_reason", "cancel_reason", "superseded_by", "cancel_latency_ms", "error")
    numbers = {"prompt_tokens": 100, "prompt_tokens_done": 100, "completion_tokens": 13, "max_tokens": 64}
    found = {"id": request_id, "status": "running", "phase": "decode", "owner": "", "seconds": 1.5}
    return dict.fromkeys(nothing) | numbers | found | changed


def cancelled(request_id: str, reason: str, latency_ms: float, **changed: Any) -> Fields:
    ending = {"status": "cancelled", "finish_reason": "cancelled", "cancel_reason": reason}
    return entry(request_id, **ending | {"cancel_latency_ms": latency_ms} | changed)


class Stage(stub_server.StubServer):
    """Answers a path with what `answers` has for it; `posted` are the paths of the cancels that came."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.keys: set[str | None] = set()
        self.posted: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {"/metrics": (200, METRICS.encode())}
        self.show()

    def show(self, *entries: Fields) -> None:
        self.say("/v1/requests", {"object": "list", "data": entries})

    def say(self, path: str, fields: Any, status: int = 200) -> None:
        self.answers[path] = status, json.dumps(fields).encode()


class Handler(stub_server.Handler):
    server: Stage

    def do_GET(self) -> None:  # noqa: N802 - named by the library
        self.server.keys.add(self.headers.get("authorization"))
        self.answer()

    def do_POST(self) -> None:  # noqa: N802 - named by the library
        self.server.posted.append(self.path)
        self.answer()

    def answer(self) -> None:
        self.reply(*self.server.answers.get(self.path, (404, b"{}")))
