"""How long a server goes on computing after its client has left in the middle of a prompt.

    python -m bench.time_to_quiet --model qwen3-0.6b-q4_0.gguf

Starts the server, sends a prompt of random tokens, closes the socket after a while, and watches the CPU time of the
server's threads until they rest. With ``--pid`` and ``--url`` it measures a server that runs already.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import uuid
from contextlib import nullcontext
from pathlib import Path

from bench.peers import OURS, Settings
from bench.peers.running import free_port, running
from pyllmcancel.bench.client import Ask, Client, Target
from pyllmcancel.bench.server_truth import stopped_after


async def measure(url: str, pid: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds from each close of a socket until the server rests, streaming and not."""
    client, chance = Client(Target(url=url, keep_alive=False)), random.Random(arguments.seed)
    latencies: dict[str, list[float]] = {"streaming": [], "whole": []}
    for _ in range(arguments.runs):
        for kind, times in latencies.items():
            ask = Ask(
                prompt=[chance.randrange(1000, arguments.vocabulary) for _ in range(arguments.tokens)],
                max_tokens=64,
                request_id=uuid.uuid4().hex,
                stream=kind == "streaming",
                cut_after=arguments.after,
            )
            exchange = await client.ask(ask)
            times.append((await stopped_after(pid, exchange.ended_at or 0.0)).seconds * 1e3)
            # The figure means nothing unless the request was cancelled by its client's leaving, in prefill.
            entry = await client.fetch_json("GET", f"/v1/requests/{ask.request_id}")
            how = entry["status"], entry["cancel_reason"], entry["phase"]
            if how != ("cancelled", "disconnect", "prefill"):
                raise RuntimeError(f"the request ended otherwise: {how}")
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--tokens", type=int, default=1600)
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--after", type=float, default=1.5, help="seconds between sending and leaving")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    settings = Settings(model=arguments.model, port=free_port(), threads=0, parallel=0, ctx_size=4096)
    with nullcontext(arguments) if arguments.url is not None else running(OURS, settings) as server:
        latencies = asyncio.run(measure(server.url, server.pid, arguments))
    for kind, times in latencies.items():
        print(  # noqa: T201 - the result of the command
            f"{kind:>10}: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms, "
            f"all {[round(value, 1) for value in times]}"
        )


if __name__ == "__main__":
    main()
