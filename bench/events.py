"""The cost of readers of ``GET /v1/events``: tokens/s with none, one and a hundred of them, in turn.

    python -m bench.events --rounds 8 --out build/events.jsonl

Starts a server, and for each turn a program with that many connections, which reads and throws away. That program takes
processor time from the computation itself, on a machine with few cores as much as the server's part does: the table
says how much each took. The readers of real life are on other machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers import PEERS, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.side_by_side.conditions import cpu_times, stolen_percent
from bench.tables import head, line
from pyllmcancel.bench.report import describe_machine
from pyllmcancel.bench.server_truth import cpu_seconds
from pyllmcancel.models import packaged_model_path

READERS = (0, 1, 100)
ANSWERS = 4  # at once
TOKENS = 1_500  # of each
# Ends with its parent, however that ends. Says when each connection has had something.
READ = """
import os, select, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
request = b"GET /v1/events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
poll = select.epoll()
silent = {}
for _ in range(count):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(request)
    silent[connection.fileno()] = connection
    poll.register(connection, select.EPOLLIN)
connections = dict(silent)
parent, n_bytes = os.getppid(), 0
while os.getppid() == parent:
    for number, _ in poll.poll(1.0):
        data = connections[number].recv(1 << 20)
        if not data:
            sys.exit(f"after {n_bytes} bytes: the end")
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            sys.exit(data.decode())
        n_bytes += len(data)
        if silent.pop(number, None) and not silent:
            print("all", flush=True)
"""

Figures = dict[str, Any]


@contextmanager
def readers(port: int, count: int) -> Iterator[subprocess.Popen[str] | None]:
    """A process with as many readers, each of which has had its snapshot."""
    if not count:
        yield None
        return
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", READ, str(port), str(count)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "all\n":
                raise RuntimeError("the readers have ended")
            yield process
            if process.poll() is not None:
                raise RuntimeError("the readers have ended")
        finally:
            process.kill()


def answer(port: int, number: int) -> int:
    """Ask for an answer; its tokens."""
    body = {"prompt": f"def function_{number}(", "max_tokens": TOKENS, "ignore_eos": True, "seed": number}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        usage: dict[str, int] = json.load(response)["usage"]
    return usage["completion_tokens"]


def loop_seconds(pid: int) -> float:
    """Processor time of a process's first thread: of our server's event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def measure(server: RunningPeer, count: int, seconds: float) -> Figures:
    """Measure answers, some at once, for about `seconds`, before `count` readers."""
    port = server.settings.port
    with readers(port, count) as reading, ThreadPoolExecutor(ANSWERS) as threads:
        list(threads.map(answer, [port] * ANSWERS, range(ANSWERS)))  # the clock comes up, the readers' interval too
        reader_pid = None if reading is None else reading.pid
        before, cpu = cpu_times(), (cpu_seconds(server.pid), loop_seconds(server.pid))
        reader_cpu = 0.0 if reader_pid is None else loop_seconds(reader_pid)
        began = time.monotonic()
        n_tokens = 0
        while time.monotonic() - began < seconds:
            n_tokens += sum(threads.map(answer, [port] * ANSWERS, range(ANSWERS)))
        took = time.monotonic() - began
        return {
            "readers": count,
            "tokens_per_second": n_tokens / took,
            "server_cores": (cpu_seconds(server.pid) - cpu[0]) / took,
            "loop_percent": 100.0 * (loop_seconds(server.pid) - cpu[1]) / took,
            "readers_percent": 0.0 if reader_pid is None else 100.0 * (loop_seconds(reader_pid) - reader_cpu) / took,
            "stolen_percent": stolen_percent(before, cpu_times()),
            "load": os.getloadavg()[0],
        }


def run(arguments: argparse.Namespace) -> list[Figures]:
    """All turns, each round with another number of readers first."""
    settings = Settings(
        model=arguments.model,
        port=free_port(),
        threads=0,
        parallel=ANSWERS,
        ctx_size=ANSWERS * 2048,
        options=("--max-event-clients", str(max(*arguments.readers, 1))),
    )
    found = []
    with running(PEERS["pyllmcancel"], settings) as server:
        for turn in range(arguments.rounds):
            first = turn % len(arguments.readers)
            for count in arguments.readers[first:] + arguments.readers[:first]:
                found.append({"round": turn} | measure(server, count, arguments.seconds))
                tell(json.dumps(found[-1]))
                if arguments.out is not None:
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    with arguments.out.open("a") as out:
                        out.write(json.dumps(found[-1]) + "\n")
    return found


def table(found: Sequence[Figures]) -> str:
    """Medians; the ratio is that of each round to the same round without readers, and its median."""
    alone = {one["round"]: one["tokens_per_second"] for one in found if one["readers"] == 0}
    names = ("tokens_per_second", "server_cores", "loop_percent", "readers_percent")
    lines = head(("readers", "tokens/s", "of none", "server, cores", "its event loop, %", "the readers, %"))
    for count in sorted({one["readers"] for one in found}):
        mine = [one for one in found if one["readers"] == count]
        ratios = [one["tokens_per_second"] / alone[one["round"]] for one in mine if one["round"] in alone]
        values = [statistics.median(one[name] for one in mine) for name in names]
        ratio = f"{statistics.median(ratios):.3f}" if ratios else ""
        lines.append(line((count, f"{values[0]:,.0f}", ratio, *(f"{value:.2f}" for value in values[1:]))))
    return "\n".join(lines) + "\n"


def tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=packaged_model_path(), help="GGUF file [the packaged one]")
    parser.add_argument("--readers", type=int, nargs="+", default=list(READERS), help="how many [0 1 100]")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn [5]")
    parser.add_argument("--out", type=Path, help="file that each turn is appended to, as JSON")
    arguments = parser.parse_args()
    found = run(arguments)
    sys.stdout.write(f"{describe_machine()}\n\n{table(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
