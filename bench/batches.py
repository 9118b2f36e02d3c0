"""A batch beside an interactive chat: its time, the chat's figures with and without it, and results after kills.

``python -m bench.batches [--model FILE] [--lines N] [--kills N] [--rounds N]``. The chat is asked again and again, and
its reader thinks for as long as its answer took. Both are asked with OpenAI's client. At last a second batch is
cancelled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any, Final
from urllib.request import urlopen

from openai import OpenAI

from bench.peers.running import free_port
from pyllmcancel.bench.percentiles import percentile

MODEL = "any"
PLAIN = ("--spec-type", "none")  # the same question is asked again, and its answer is not to be known
QUESTION = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 32}
ENDPOINT: Final = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def served(command: list[str], address: str) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it serves."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while True:
        try:
            with urlopen(f"{address}/health"):
                return process
        except OSError:
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}") from None
        time.sleep(0.1)


def chat(client: OpenAI) -> list[float]:
    """Return the milliseconds to each token of an answer: from its request, and then from the token before."""
    times = [time.perf_counter()]
    asked: Any = QUESTION | {"model": MODEL, "stream": True}
    chunks = client.chat.completions.create(**asked)
    times += [time.perf_counter() for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    time.sleep(times[-1] - times[0])
    return [(after - before) * 1e3 for before, after in pairwise(times)]


def report(title: str, chats: list[list[float]]) -> None:
    for name, values in ("first token", [one[0] for one in chats]), ("gap", [gap for one in chats for gap in one[1:]]):
        p50, p99 = (percentile(values, share) or 0.0 for share in (50, 99))
        sys.stdout.write(f"{title}, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, of {len(values)}\n")


def begun(client: OpenAI, n_lines: int) -> str:
    line = {"method": "POST", "url": ENDPOINT, "body": QUESTION | {"model": MODEL}}
    text = "\n".join(json.dumps({"custom_id": str(number)} | line) for number in range(n_lines))
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h").id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    for name, usual in (("lines", 100), ("kills", 3), ("rounds", 30)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    given, port = parser.parse_args(), free_port()
    options = ["--port", str(port), *PLAIN, *(["--model", given.model] if given.model else [])]
    address = f"http://127.0.0.1:{port}"
    client = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", *options, "--store", f"{folder}/store.db"]
        process, kills = served(command, address), 0
        report("alone", [chat(client) for _ in range(given.rounds)])
        name, began, beside = begun(client, given.lines), time.monotonic(), list[list[float]]()
        while (batch := client.batches.retrieve(name)).status not in ENDED:
            beside.append(chat(client))
            done = batch.request_counts.completed if batch.request_counts else 0
            if kills < given.kills and done > kills * given.lines // given.kills:
                process.kill()
                process.wait()
                process, kills = served(command, address), kills + 1
        seconds = time.monotonic() - began
        report("beside the batch", beside)
        lines = client.files.content(batch.output_file_id or "").text.splitlines()
        names = {json.loads(line)["custom_id"] for line in lines}
        ended = f"{batch.status} after {seconds:.0f} s and {kills} kills"
        sys.stdout.write(f"{ended}: {len(lines)} results, {len(names)} different\n")
        stopped = client.batches.cancel(begun(client, given.lines))
        began = time.monotonic()
        while (stopped := client.batches.retrieve(stopped.id)).status not in ENDED:
            time.sleep(0.001)
        sys.stdout.write(f"another: {stopped.status} {(time.monotonic() - began) * 1e3:.0f} ms after its cancel\n")
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
