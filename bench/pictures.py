"""Pictures, beside llama-server: how fast they are computed, and what is left of their computing when a client leaves.

    python tools/make_toy_projectors.py --bench build/projectors
    python -m bench.pictures --model SMOLLM2.gguf --projectors build/projectors --rounds 100

Both servers run at the same time, with the same threads, and are asked in turns. Each picture is new. The first
projector has SmolVLM's vision tower, so that nearly all of a request's time is the encoding; with the second one nearly
all of it is the text model's, which computes the picture's rows. Speeds are in processor time, which depends little on
other programs.

A client that leaves closes its connection at a random moment, between a tenth and nine tenths of the time that a whole
request takes on that server. Then the server's process is watched until its threads rest.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import random
import select
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import HOST, PEERS, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.side_by_side.conditions import cpu_times, stolen_percent
from bench.tables import head, line
from pyllmcancel.bench.report import describe_machine
from pyllmcancel.bench.server_truth import Stop, cpu_seconds, watch_until_quiet

NAMES = ("pyllmcancel", "llama-server")
SIDE = 384  # pixels of a picture
LEAVES = (0.1, 0.9)  # of a request's time
LONGEST = 600.0

Figures = dict[str, Any]


class Took(NamedTuple):
    """Seconds of a whole request, and of the processor."""

    seconds: float
    cpu_seconds: float


def picture(chance: random.Random) -> str:
    """Return a new picture of coloured lines, as a data URL."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = b"".join(b"\0" + chance.randbytes(3) * SIDE for _ in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    file = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 1)) + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(file).decode()


def begin(server: RunningPeer, url: str) -> http.client.HTTPConnection:
    """Ask for a token about a picture."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "stream": False}
    connection = http.client.HTTPConnection(HOST, server.settings.port, timeout=LONGEST)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


def whole(server: RunningPeer, url: str) -> Took:
    """Have a picture computed."""
    used, began = cpu_seconds(server.pid), time.monotonic()
    connection = begin(server, url)
    response = connection.getresponse()
    answer = response.read()
    took = Took(time.monotonic() - began, cpu_seconds(server.pid) - used)
    connection.close()
    if response.status != http.client.OK:
        raise RuntimeError(f"{server.peer.name}: {response.status} {answer[:300].decode(errors='replace')}")
    watch_until_quiet(server.pid, time.monotonic())
    return took


def left(server: RunningPeer, url: str, delay: float) -> Stop | None:
    """Leave after `delay` seconds; None if the answer was there before."""
    connection = begin(server, url)
    time.sleep(delay)
    answered = select.select([connection.sock], [], [], 0)[0]
    used, since = cpu_seconds(server.pid), time.monotonic()
    connection.close()
    stop = watch_until_quiet(server.pid, since, used_before=used, give_up=LONGEST)
    return None if answered else stop


@contextmanager
def both(arguments: argparse.Namespace, projector: str) -> Iterator[list[RunningPeer]]:
    """The two servers, each of which has computed a picture."""

    def settings() -> Settings:
        return Settings(
            model=arguments.model,
            port=free_port(),
            threads=arguments.threads,
            parallel=1,
            ctx_size=2048,
            options=("--mmproj", str(arguments.projectors / projector)),
        )

    ours, theirs = (PEERS[name] for name in NAMES)
    with running(ours, settings()) as first, running(theirs, settings()) as second:
        for server in (first, second):
            whole(server, picture(random.Random(-1)))
        yield [first, second]


def in_turns(servers: list[RunningPeer], rounds: int, seed: int) -> Iterator[tuple[int, RunningPeer, random.Random]]:
    """Each server in each round, the other one first in every second round, with the same chances."""
    for turn in range(rounds):
        for server in servers if turn % 2 == 0 else reversed(servers):
            yield turn, server, random.Random(seed + turn)


def speeds(arguments: argparse.Namespace, projector: str) -> Iterator[Figures]:
    with both(arguments, projector) as servers:
        for turn, server, chance in in_turns(servers, arguments.pictures, 1_000):
            took = whole(server, picture(chance))
            yield {"what": projector, "turn": turn, "server": server.peer.name} | took._asdict()


def leaving(arguments: argparse.Namespace, projector: str) -> Iterator[Figures]:
    with both(arguments, projector) as servers:
        # The last of the whole requests of each: how long it takes changes with what else the machine does.
        took = {server.peer.name: whole(server, picture(random.Random(-2))).seconds for server in servers}
        for turn, server, chance in in_turns(servers, arguments.rounds, 2_000):
            url, name = picture(chance), server.peer.name
            stop = left(server, url, took[name] * chance.uniform(*LEAVES))
            if stop is not None:
                yield {
                    "what": "left",
                    "turn": turn,
                    "server": name,
                    "seconds": stop.seconds,
                    "cpu_seconds": stop.cpu_seconds,
                }


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def speed_table(found: list[Figures]) -> str:
    """The ratio is the median of the rounds' ratios."""
    lines = head(("request", *(f"{name}, CPU s" for name in NAMES), "ratio", "rounds"))
    for what, label in (("mmproj-slow.gguf", "nearly all encoding"), ("mmproj-wide.gguf", "nearly all rows")):
        by_turn: dict[int, dict[str, float]] = {}
        for one in found:
            if one["what"] == what:
                by_turn.setdefault(one["turn"], {})[one["server"]] = one["cpu_seconds"]
        pairs = [[turn[name] for name in NAMES] for turn in by_turn.values() if len(turn) == len(NAMES)]
        if pairs:
            medians = [f"{statistics.median(pair[place] for pair in pairs):.3f}" for place in range(len(NAMES))]
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            lines.append(line((label, *medians, f"{ratio:.3f}", len(pairs))))
    return "\n".join(lines)


def leaving_table(found: list[Figures]) -> str:
    lines = head(("server", "left", "to rest: p50 s", "p99 s", "longest s", "CPU s after: p50", "p99", "all"))
    for name in NAMES:
        mine = [one for one in found if one["what"] == "left" and one["server"] == name]
        if mine:
            rest, used = ([one[key] for one in mine] for key in ("seconds", "cpu_seconds"))
            cells = [f"{percentile(rest, share):.3f}" for share in (0.5, 0.99)] + [f"{max(rest):.3f}"]
            cells += [f"{percentile(used, share):.3f}" for share in (0.5, 0.99)] + [f"{sum(used):.1f}"]
            lines.append(line((name, len(mine), *cells)))
    return "\n".join(lines)


def run(arguments: argparse.Namespace) -> list[Figures]:
    parts = {
        "encode": lambda: speeds(arguments, "mmproj-slow.gguf"),
        "rows": lambda: speeds(arguments, "mmproj-wide.gguf"),
        "leave": lambda: leaving(arguments, "mmproj-slow.gguf"),
    }
    found: list[Figures] = []
    for part in arguments.parts:
        for figures in parts[part]():
            found.append(figures | {"load": os.getloadavg()[0]})
            text = json.dumps(found[-1]) + "\n"
            sys.stderr.write(text)
            if arguments.out is not None:
                with arguments.out.open("a") as out:
                    out.write(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2's file (`models get smollm2`)")
    parser.add_argument("--projectors", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pictures", type=int, default=12, help="whole requests of each kind to each server [12]")
    parser.add_argument("--rounds", type=int, default=100, help="clients that leave, of each server [100]")
    parser.add_argument("--parts", nargs="+", choices=("encode", "rows", "leave"), default=["encode", "rows", "leave"])
    parser.add_argument("--out", type=Path, help="file that each result is appended to, as JSON")
    arguments = parser.parse_args()
    before = cpu_times()
    found = run(arguments)
    loads = [one["load"] for one in found]
    sys.stdout.write(f"{describe_machine()}; threads {arguments.threads}; load {min(loads):.1f} to {max(loads):.1f}; ")
    sys.stdout.write(f"stolen {stolen_percent(before, cpu_times()):.1f} %\n\n")
    sys.stdout.write(f"{speed_table(found)}\n\n{leaving_table(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
