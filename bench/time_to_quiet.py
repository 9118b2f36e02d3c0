"""How long a server goes on computing after its client has left in the middle of a prompt.

    python -m bench.time_to_quiet --model qwen3-0.6b-q4_0.gguf

Starts the server, sends a prompt of random tokens, closes the socket after a while, and watches the CPU time of the
server's threads until they rest. With ``--pid`` and ``--url`` it measures a server that runs already.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import httpx

from bench.server_process import serving
from pyllmcancel.bench.server_truth import seconds_until_quiet


def leave_mid_prompt(url: str, pid: int, prompt: list[int], *, stream: bool, after: float) -> float:
    """Send a completion request, close the socket `after` seconds later; seconds until the server rests."""
    target = httpx.URL(url)
    body = json.dumps({"prompt": prompt, "max_tokens": 64, "stream": stream, "model": "any"}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {target.host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((target.host, target.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(after)
    return seconds_until_quiet(pid, since=time.monotonic())


def run(url: str, pid: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    chance = random.Random(arguments.seed)
    latencies: dict[str, list[float]] = {"streaming": [], "whole": []}
    for _ in range(arguments.runs):
        for kind, times in latencies.items():
            prompt = [chance.randrange(1000, arguments.vocabulary) for _ in range(arguments.tokens)]
            quiet = leave_mid_prompt(url, pid, prompt, stream=kind == "streaming", after=arguments.after)
            times.append(quiet * 1e3)
            refuse_other_endings(url)
    return latencies


def refuse_other_endings(url: str) -> None:
    """The measurement means nothing unless the request was cancelled by its client's leaving, in prefill."""
    newest = httpx.get(f"{url}/v1/requests").json()["data"][0]
    how = newest["status"], newest["cancel_reason"], newest["phase"]
    if how != ("cancelled", "disconnect", "prefill"):
        raise RuntimeError(f"the request ended otherwise: {how}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--tokens", type=int, default=1600)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--after", type=float, default=1.5, help="seconds between sending and leaving")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.url is not None:
        running = nullcontext((arguments.url, arguments.pid))
    else:
        running = serving(arguments.model, arguments.port, "--ctx-size", "4096")
    with running as (url, pid):
        latencies = run(url, pid, arguments)
    for kind, times in latencies.items():
        print(  # noqa: T201 - the result of the command
            f"{kind:>10}: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms, "
            f"all {[round(value, 1) for value in times]}"
        )


if __name__ == "__main__":
    main()
