"""How long a stream stands still at another client's first request of a kind: ``python -m bench.first_requests``.

    python -m bench.first_requests --model M --only "chat|GET" --out build/first_requests.jsonl

For each kind a server is started, and one client reads a stream all the time. Printed are the stream's longest gaps in
milliseconds: in some seconds before, at the kind's first request, and at the same request once more, which shares steps
with the stream as the first one does. ``tests/http/test_first_requests.py`` says by structure what this says by clock.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import httpx

from bench.peers import PEERS, Settings
from bench.peers.running import free_port, running
from bench.tables import head, line
from pyllmcancel.models import packaged_model_path

STREAM = {"prompt": "import os\n", "max_tokens": 1_900, "ignore_eos": True, "stream": True, "temperature": 0}
AFTERWARDS = 0.1  # seconds that still belong to a request
COLUMNS = ("kind", "status", "usual", "first", "took", "again", "took again", "ready after s", "MiB")

QUESTION = [{"role": "user", "content": "hello"}]
INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": INTEGER}}


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def completion(**fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/completions", {"prompt": "x", "max_tokens": 4} | fields


def chat(**fields: Any) -> tuple[str, str, dict[str, Any]]:
    return "POST", "/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4} | fields


KINDS: dict[str, tuple[str, str, Any]] = {
    "GET /": ("GET", "/", None),
    "GET /docs": ("GET", "/docs", None),
    "GET /openapi.json": ("GET", "/openapi.json", None),
    "GET /metrics": ("GET", "/metrics", None),
    "GET /v1/models": ("GET", "/v1/models", None),
    "GET /v1/requests": ("GET", "/v1/requests", None),
    "GET /props": ("GET", "/props", None),
    "unknown path": ("GET", "/nothing", None),
    "wrong method": ("PUT", "/v1/messages", None),
    "bad body": ("POST", "/v1/responses", {"input": 5}),
    "completion": completion(),
    "completion, logprobs, n": completion(logprobs=2, n=2),
    "completion, min_tokens": completion(min_tokens=1),
    "completion, GBNF": completion(grammar="root ::= [a-z]+"),
    "completion, plain schema": completion(response_format=form(INTEGER)),
    "completion, schema": completion(response_format=form(PATTERN)),
    "chat": chat(),
    "chat, tool": chat(tools=[TOOL]),
    "chat, tool required": chat(tools=[TOOL], tool_choice="required"),
    "chat, schema": chat(response_format=form(PATTERN)),
    "responses": ("POST", "/v1/responses", {"input": "hello", "max_output_tokens": 16}),
    "messages": ("POST", "/v1/messages", {"model": "x", "messages": QUESTION, "max_tokens": 4}),
    "count_tokens": ("POST", "/v1/messages/count_tokens", {"model": "x", "messages": QUESTION}),
    "completion of llama.cpp": ("POST", "/completion", {"prompt": "x", "n_predict": 4}),
    "infill": ("POST", "/infill", {"input_prefix": "def f(", "input_suffix": ")", "n_predict": 4}),
    "tokenize": ("POST", "/tokenize", {"content": "hello"}),
}


class Stream:
    """Reads answers, one after the other, and takes note when something came."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._times: list[float] = []  # written by the thread
        self._stopped = False

    def read(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300.0) as http:
            while not self._stopped:
                with http.stream("POST", "/v1/completions", json=STREAM) as answer:
                    for _ in answer.iter_raw():
                        self._times.append(time.perf_counter())
                        if self._stopped:
                            break

    def stop(self) -> None:
        self._stopped = True

    def wait_until_it_flows(self, n_pieces: int = 20) -> None:
        while len(self._times) < n_pieces:
            time.sleep(0.01)

    def longest_gap(self, since: float) -> float:
        """Milliseconds, from the last piece before `since` to the last one so far."""
        times = list(self._times)
        begin = max((at for at in times if at <= since), default=since)
        seen = [begin, *(at for at in times if at > since), time.perf_counter()]
        return 1e3 * max(after - before for before, after in pairwise(seen))


@contextmanager
def streaming(url: str) -> Iterator[Stream]:
    stream = Stream(url)
    thread = threading.Thread(target=stream.read)
    thread.start()
    try:
        stream.wait_until_it_flows()
        yield stream
    finally:
        stream.stop()
        thread.join()


def gap_at(stream: Stream, http: httpx.Client, kind: str) -> tuple[int, float, float]:
    """Status of a request of this kind, the stream's longest gap meanwhile, and how long the request took, in ms."""
    method, path, body = KINDS[kind]
    began = time.perf_counter()
    status = http.request(method, path, json=body).status_code
    took = time.perf_counter() - began
    time.sleep(AFTERWARDS)
    return status, stream.longest_gap(began), 1e3 * took


def measure(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(
        model=arguments.model, port=free_port(), threads=arguments.threads, parallel=0, ctx_size=arguments.ctx_size
    )
    with running(PEERS["pyllmcancel"], settings) as server, streaming(server.url) as stream:
        with httpx.Client(base_url=server.url, timeout=300.0) as http:
            http.get("/health")  # the connection is there
            began = time.perf_counter()
            time.sleep(arguments.seconds)
            usual = stream.longest_gap(began)
            status, first, took = gap_at(stream, http, kind)
            _, again, took_again = gap_at(stream, http, kind)
        figures = (kind, status, usual, first, took, again, took_again, server.seconds_to_ready, resident(server.pid))
    return dict(zip(COLUMNS, figures, strict=True))


def resident(pid: int) -> int:
    """MiB of a process and its children."""
    # The sum over all threads.
    children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    pids = [pid, *map(int, chain(*children))]
    lines = [one for each in pids for one in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()]
    return sum(int(one.split()[1]) for one in lines if one.startswith("Pss:")) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=packaged_model_path())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ctx-size", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0, help="for which the usual gap is looked at")
    parser.add_argument("--only", default="", help="kinds in which this regular expression is found")
    parser.add_argument("--out", type=Path, help="JSON lines are added to this file")
    arguments = parser.parse_args()
    sys.stdout.write("\n".join(head(COLUMNS)) + "\n")
    for kind in KINDS:
        if not re.search(arguments.only, kind):
            continue
        row = measure(kind, arguments)
        cells = [f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()]
        sys.stdout.write(line(cells) + "\n")
        sys.stdout.flush()
        if arguments.out is not None:
            with arguments.out.open("a") as out:
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
