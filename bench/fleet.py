"""The effect and the cost of `--peers`: servers that know each other, on this machine, and no balancer before them.

    python -m bench.fleet latency       # from a newer request at one server to the stop of the older one at another
    python -m bench.fleet first-token   # a server's own first token, with a peer and without, in pairs
    python -m bench.fleet families      # from a family's cancel at one server to the end of its last request at any
    python -m bench.fleet storm         # sessions that type, each key at a random server, with names in bodies

Times of servers are their own, by the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from bench.peers import PEERS, Settings
from bench.peers.running import free_port
from pyllmcancel.bench.report import describe_machine
from pyllmcancel.models import packaged_model_path

PATH = "/v1/completions"
PATIENCE = 60.0  # seconds
MODES = ("latency", "families", "first-token", "storm")


@contextmanager
def servers(model: Path, n: int, *options: str, peers: bool = True, logs: Path | None = None) -> Iterator[list[str]]:
    """Start `n` servers that know each other; yields their addresses. Their logs, in JSON, go into the folder
    `logs`.
    """
    ports = [free_port() for _ in range(n)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    among = ("--peers", ",".join(urls)) if peers else ()
    with ExitStack() as stack:
        for port in ports:
            settings = Settings(
                model=model,
                port=port,
                threads=1,
                parallel=4,
                ctx_size=8192,
                options=(*among, "--kv-unified", "--store", "off", "--log-format", "json", *options),
            )
            # Not into a pipe: a server must not wait for this process to read.
            path = Path(os.devnull) if logs is None else logs / f"{port}.log"
            log = stack.enter_context(path.open("w"))
            process = stack.enter_context(subprocess.Popen(PEERS["pyllmcancel"].command(settings), stderr=log))
            stack.callback(process.terminate)
        for url in urls:
            until(lambda url=url: httpx.get(f"{url}/health").status_code == 200)  # type: ignore[misc]
            until(lambda url=url: "unreached" not in httpx.get(f"{url}/v1/requests").json())  # type: ignore[misc]
        yield urls


def until(accept: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if accept():
                return
        time.sleep(0.1)
    raise RuntimeError("the servers do not find each other")


class Stream:
    """A streamed completion that has been accepted."""

    def __init__(self, url: str, **fields: Any) -> None:
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
        body = json.dumps({"prompt": "def f():\n", "stream": True, "ignore_eos": True, "max_tokens": 1500} | fields)
        self.sent_at = time.monotonic()
        self.connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        self.answer = self.connection.getresponse()
        self.id = self.answer.headers["X-Request-Id"]

    def first_token(self) -> float:
        """Seconds from the request to it."""
        self.answer.readline()
        return time.monotonic() - self.sent_at

    def rest(self) -> bytes:
        return self.answer.read()

    def close(self) -> None:
        self.connection.close()


def latency(urls: Sequence[str], n: int) -> list[float]:
    """Seconds from the arrival of a newer request at one server to the end of the older one's computing at another."""
    found = []
    for number in range(n):
        here, there = random.sample(urls, 2)
        older = Stream(here, supersede=f"k{number}")
        older.first_token()
        newer = Stream(there, supersede=f"k{number}")
        if b"superseded" not in older.rest():
            raise RuntimeError("the older request was not superseded")
        ended = httpx.get(f"{here}/v1/requests/{older.id}").json()["times"]["ended"]
        arrived = httpx.get(f"{there}/v1/requests/{newer.id}").json()["times"]["arrived"]
        httpx.post(f"{there}/v1/requests/{newer.id}/cancel")
        newer.close()
        older.close()
        found.append(ended - arrived)
    return found


def families(urls: Sequence[str], n: int) -> list[float]:
    """Seconds from the cancel of a family to the end of its last request's computing, wherever that was.

    Three generations, of which each server has a request; a stranger's request has to live through it.
    """
    found = []
    for number in range(n):
        root, child, grandchild = (f"{name}{number}" for name in ("root", "child", "grandchild"))
        names = [{"session_id": child, "parent_session_id": root}]
        names += [{"session_id": grandchild, "parent_session_id": child} for _ in urls]
        members = [(urls[0], Stream(urls[0], session_id=root))]
        members += [(url, Stream(url, **fields)) for url, fields in zip([*urls[-1:], *urls], names, strict=True)]
        there = random.choice(urls)
        stranger = Stream(there, session_id=f"stranger{number}")
        for _, stream in [*members, (there, stranger)]:
            stream.first_token()
        began = time.monotonic()
        httpx.post(f"{random.choice(urls)}/v1/sessions/{root}/cancel", timeout=PATIENCE).raise_for_status()
        ended = []
        for url, stream in members:
            stream.rest()
            stream.close()
            entry = httpx.get(f"{url}/v1/requests/{stream.id}").json()
            if entry["cancel_reason"] != "explicit":
                raise RuntimeError(f"a request of the family was not cancelled: {entry}")
            ended.append(entry["times"]["ended"])
        if httpx.get(f"{there}/v1/requests/{stranger.id}").json()["status"] != "running":
            raise RuntimeError("a stranger's request did not live through it")
        httpx.post(f"{there}/v1/requests/{stranger.id}/cancel")
        stranger.close()
        found.append(max(ended) - began)
    return found


def first_tokens(alone: str, peer: str, n: int, **fields: Any) -> tuple[list[float], list[float]]:
    """Seconds to the first token, of a server alone and of one with a peer, the one and the other first in turn."""
    found: dict[str, list[float]] = {alone: [], peer: []}
    for number in range(n + 10):
        for url in (alone, peer) if number % 2 else (peer, alone):
            stream = Stream(url, prompt=f"def f_{number}(a):\n", max_tokens=1, **fields)
            seconds = stream.first_token()
            stream.rest()
            stream.close()
            if number >= 10:  # the first ones warm up
                found[url].append(seconds)
            time.sleep(0.005)
    return found[alone], found[peer]


class Key(NamedTuple):
    """A key typed in one session, as its server has it: in seconds since the epoch, to a millisecond."""

    arrived_at: float
    ended_at: float
    completed: bool


async def post(url: str, request_id: str, body: Mapping[str, Any]) -> None:
    """Ask, on a connection of its own, and read to the end: a client's pool of a thousand would be the slowest part."""
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: {address.host}\r\nConnection: close\r\nX-Request-Id: {request_id}\r\n"
    content = json.dumps(body).encode()
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    while await reader.read(1 << 16):
        pass
    writer.close()


async def typed(urls: Sequence[str], name: int, keys: int, pause: float) -> None:
    """One session; each key is sent to a random server, and its names are in the body."""
    await asyncio.sleep(random.uniform(0.0, pause))
    sending = []
    for number in range(keys):
        # The last one is short, so that all sessions come to an end.
        body = {"prompt": f"def f_{name}():\n", "max_tokens": 8 if number == keys - 1 else 1500, "ignore_eos": True}
        names = {"session_id": f"s{name}", "supersede": f"k{name}"}
        sending.append(asyncio.create_task(post(random.choice(urls), f"{name}-{number}", body | names)))
        await asyncio.sleep(random.uniform(0.5, 1.5) * pause)
    await asyncio.gather(*sending)


async def storm(urls: Sequence[str], sessions: int, keys: int, pause: float) -> None:
    await asyncio.gather(*(typed(urls, name, keys, pause) for name in range(sessions)))


def logged(folder: Path) -> dict[str, list[Key]]:
    """The keys of each session, in the order in which they arrived."""
    found = defaultdict[str, list[Key]](list)
    for path in folder.iterdir():
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["logger"] == "pyllmcancel.access" and line["path"] == PATH:
                ended_at = datetime.fromisoformat(line["time"]).timestamp()
                key = Key(ended_at - line["seconds"], ended_at, line["status"] == 200)
                found[line["request_id"].partition("-")[0]].append(key)
    return {name: sorted(keys) for name, keys in found.items()}


def told_storm(found: Mapping[str, Sequence[Key]]) -> str:
    newest = sum(keys[-1].completed for keys in found.values())
    pairs = [pair for keys in found.values() for pair in pairwise(keys)]
    superseded = [older.ended_at - newer.arrived_at for older, newer in pairs if not older.completed]
    late = [older for older, newer in pairs if older.completed and older.ended_at > newer.arrived_at]
    return (
        f"{sum(map(len, found.values()))} keys: the newest of a session completed: {newest} of {len(found)}; of"
        f" {len(pairs)} older ones {len(superseded)} were superseded, {len(late)} completed beside a newer one; from"
        f" the arrival of the newer one to the end of the older one's answer: {told(superseded)}\n"
        + "".join(told_lost(name, keys) for name, keys in found.items() if not keys[-1].completed)
    )


def told_lost(name: str, keys: Sequence[Key]) -> str:
    """A session whose newest key did not complete: how much later than the newest but one it arrived."""
    apart = 1e3 * (keys[-1].arrived_at - keys[-2].arrived_at)
    n_completed = sum(key.completed for key in keys)
    return f"session {name}: {n_completed} keys completed; the last two arrived {apart:.1f} ms apart\n"


def told(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return f"{len(seconds)} of them"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    milliseconds = [1e3 * one for one in (statistics.median(seconds), cuts[89], cuts[98], max(seconds))]
    return "p50 {:.1f} ms, p90 {:.1f}, p99 {:.1f}, at most {:.1f}".format(*milliseconds) + f" ({len(seconds)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--model", type=Path, default=packaged_model_path(), help="GGUF file [the packaged one]")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--number", type=int, default=300, help="pairs of requests, or sessions [300]")
    parser.add_argument("--keys", type=int, default=10, help="of a session [10]")
    parser.add_argument("--pause", type=float, default=0.2, help="between two keys, in seconds, on average [0.2]")
    arguments = parser.parse_args()
    sys.stdout.write(f"{describe_machine()}\n")
    match arguments.mode:
        case "latency":
            with servers(arguments.model, arguments.servers) as urls:
                sys.stdout.write(told(latency(urls, arguments.number)) + "\n")
        case "families":
            with servers(arguments.model, arguments.servers) as urls:
                sys.stdout.write(told(families(urls, arguments.number)) + "\n")
        case "first-token":
            with servers(arguments.model, 1, peers=False) as (alone,), servers(arguments.model, 2) as urls:
                for fields in ({"supersede": "k"}, {}):
                    mine, theirs = first_tokens(alone, urls[0], arguments.number, **fields)
                    apart = [1e3 * (b - a) for a, b in zip(mine, theirs, strict=True)]
                    sys.stdout.write(
                        f"{'with' if fields else 'without'} a key: alone {told(mine)}; with a peer {told(theirs)};"
                        f" median of the differences {statistics.median(apart):+.2f} ms\n"
                    )
        case "storm":
            options = ("--max-queue", str(10 * arguments.number))
            with TemporaryDirectory() as folder:
                with servers(arguments.model, arguments.servers, *options, logs=Path(folder)) as urls:
                    asyncio.run(storm(urls, arguments.number, arguments.keys, arguments.pause))
                sys.stdout.write(told_storm(logged(Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
