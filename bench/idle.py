"""The cost of idle requests for others, and the share that they get of the time that others leave.

``python -m bench.idle --model FILE.gguf [--loads 10 50 90] [--requests N] [--tokens N] [--rounds R]`` serves the
model once. At each load one client asks again and again, and thinks in between, so that its answers take this share of
the time, in per cent: the same questions in turn without and with idle requests. The rate of those alone says what free
time is worth. The answers must be the same in both.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from bench.peers import OURS, Settings
from bench.peers.running import free_port, running
from pyllmcancel.bench.percentiles import percentile

PLAIN = ("--spec-type", "none")  # the same questions are asked twice, and no answer is to be known
N_IDLE = 6  # requests that wait for idle time, at any time
IDLE_TOKENS = 64
SECONDS_ALONE = 20.0
SECONDS_TO_FILL = 5.0  # so that idle requests are in every phase when the count of their tokens begins
GENERATED = re.compile(r"^pyllmcancel_generated_tokens_total(?:{[^}]*})? ([\d.e+]+)$", re.MULTILINE)


class Asked(NamedTuple):
    """One answer: its text, the seconds to its first token, those between tokens, and all."""

    text: str
    first: float
    gaps: list[float]
    seconds: float


class Figures(NamedTuple):
    """Milliseconds to the first token (median, 99th percentile, most) and between tokens, tokens a second, idle tokens
    a second of free time, and the answers.
    """

    firsts: tuple[float, float, float]
    gap: float
    rate: float
    idle_rate: float
    texts: list[str]


def asked_for(port: int, body: dict[str, object]) -> Request:
    url, json_type = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
    return Request(url, json.dumps(body | {"ignore_eos": True}).encode(), json_type)


def ask(port: int, body: dict[str, object]) -> Asked:
    began = time.monotonic()
    times, text = [], ""
    with urlopen(asked_for(port, body)) as lines:
        for line in lines:
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Asked(text, times[0] - began, gaps, times[-1] - began)


class Idle:
    """Clients that always have an idle request waiting."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stops = threading.Event()
        self._pool = ThreadPoolExecutor(N_IDLE)

    def __enter__(self) -> None:
        for number in range(N_IDLE):
            self._pool.submit(self._run, number)
        time.sleep(SECONDS_TO_FILL)

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._pool.shutdown()

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        while not self._stops.is_set():
            body = {"prompt": prompt_of(chance, 200), "max_tokens": IDLE_TOKENS, "priority": "idle"}
            with urlopen(asked_for(self._port, body)) as answer:
                answer.read()


def prompt_of(chance: random.Random, n_words: int) -> str:
    return " ".join(f"{chance.choice(WORDS)}" for _ in range(n_words))


WORDS = Path(__file__).read_text().split()


def computed(port: int) -> float:
    """Return the tokens that the server has generated."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return sum(map(float, GENERATED.findall(answer.read().decode())))


def measure(port: int, load: float, n_requests: int, n_tokens: int, seed: int) -> Figures:
    """Have one client ask for answers of `n_tokens` tokens, at a load in (0, 1)."""
    chance, asked, busy = random.Random(seed), list[Asked](), 0.0
    began, before = time.monotonic(), computed(port)
    for _ in range(n_requests):
        body = {"prompt": prompt_of(chance, 60), "max_tokens": n_tokens, "stream": True, "temperature": 0.0}
        asked.append(ask(port, body | {"cache_prompt": False}))
        busy += asked[-1].seconds
        time.sleep(asked[-1].seconds * (1.0 - load) / load * chance.uniform(0.5, 1.5))
    free = time.monotonic() - began - busy
    idle = computed(port) - before - n_tokens * n_requests
    firsts = [one.first * 1e3 for one in asked]
    gaps = [gap * 1e3 for one in asked for gap in one.gaps]
    p50, p99 = (percentile(firsts, share) or 0.0 for share in (50, 99))
    decoding = sum(sum(one.gaps) for one in asked)
    rate = sum(len(one.gaps) for one in asked) / decoding
    texts = [one.text for one in asked]
    return Figures((p50, p99, max(firsts)), percentile(gaps, 99) or 0.0, rate, idle / free, texts)


def alone(port: int) -> float:
    """Return the idle tokens a second of an idle machine."""
    before, began = computed(port), time.monotonic()
    time.sleep(SECONDS_ALONE)
    return (computed(port) - before) / (time.monotonic() - began)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--loads", type=int, nargs="*", default=[10, 50, 90])
    parser.add_argument("--requests", type=int, default=50, help="requests of a round")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    settings = Settings(model=arguments.model, port=free_port(), threads=2, parallel=4, ctx_size=8192, options=PLAIN)
    differ = 0
    with running(OURS, settings):
        with Idle(settings.port):
            whole = alone(settings.port)
        say(f"load   0 %: idle {whole:.1f} tokens/s")
        for load in arguments.loads:
            for number in range(arguments.rounds):
                how = settings.port, load / 100, arguments.requests, arguments.tokens, 100 * load + number
                without = measure(*how)
                with Idle(settings.port):
                    beside = measure(*how)
                differ += sum(one != other for one, other in zip(without.texts, beside.texts, strict=True))
                for name, found in (("without", without), ("with idle", beside)):
                    p50, p99, most = found.firsts
                    say(
                        f"load {load:3} %, {name:>9}: first token {p50:.1f} ms, p99 {p99:.1f}, most {most:.1f};"
                        f" gap p99 {found.gap:.1f} ms; {found.rate:.1f} tokens/s;"
                        f" idle {found.idle_rate:.1f} tokens/s, {found.idle_rate / whole:.2f} of the free time"
                    )
    say(f"{differ} answers differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
