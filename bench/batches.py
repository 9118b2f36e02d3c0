"""A batch beside an interactive chat: its time, the chat's figures with and without it, and results after kills.

``python -m bench.batches [--model FILE] [--lines N] [--kills N] [--seconds S]``
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from statistics import quantiles
from typing import Any

import httpx

from bench.peers.running import free_port

QUESTION = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 64, "ignore_eos": True}
ENDED = ("completed", "failed", "expired", "cancelled")


def served(command: list[str], client: httpx.Client) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it serves."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while True:
        try:
            if client.get("/health").status_code == 200:
                return process
        except httpx.TransportError:
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}") from None
        time.sleep(0.1)


def chat(client: httpx.Client) -> list[float]:
    """Return the milliseconds to each token of an answer: from its request, and then from the token before."""
    times = [time.perf_counter()]
    with client.stream("POST", "/v1/chat/completions", json=QUESTION | {"stream": True}) as answer:
        times += [time.perf_counter() for line in answer.iter_lines() if '"content":"' in line]
    return [(after - before) * 1e3 for before, after in pairwise(times)]


def report(title: str, chats: list[list[float]]) -> None:
    for name, values in ("first token", [one[0] for one in chats]), ("gap", [gap for one in chats for gap in one[1:]]):
        cuts = quantiles(values, n=100) if len(values) > 1 else values * 99
        sys.stdout.write(f"{title}, {name}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, of {len(values)}\n")


def begun(client: httpx.Client, n_lines: int) -> str:
    line = {"method": "POST", "url": "/v1/chat/completions", "body": QUESTION}
    text = "\n".join(json.dumps({"custom_id": str(n)} | line) for n in range(n_lines))
    sent = client.post("/v1/files", files={"file": ("in.jsonl", text)}, data={"purpose": "batch"})
    file = sent.raise_for_status().json()["id"]
    asked = {"input_file_id": file, "endpoint": line["url"], "completion_window": "24h"}
    return str(client.post("/v1/batches", json=asked).raise_for_status().json()["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    for name, usual in (("lines", 100), ("kills", 3), ("seconds", 30)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    given, port = parser.parse_args(), free_port()
    options = ["--port", str(port), *(["--model", given.model] if given.model else [])]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, httpx.Client(base_url=address, timeout=600) as client:
        command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", *options, "--store", f"{folder}/store.db"]
        process, until = served(command, client), time.monotonic() + given.seconds
        alone, beside = list[list[float]](), list[list[float]]()
        kills = 0
        while time.monotonic() < until:
            alone.append(chat(client))
        name, began, batch = begun(client, given.lines), time.monotonic(), dict[str, Any](status="")
        while batch["status"] not in ENDED:
            beside.append(chat(client))
            batch = client.get(f"/v1/batches/{name}").json()
            if kills < given.kills and batch["request_counts"]["completed"] > kills * given.lines // given.kills:
                process.kill()
                process.wait()
                process, kills = served(command, client), kills + 1
        report("alone", alone)
        report("beside the batch", beside)
        output = client.get(f"/v1/files/{batch['output_file_id']}/content").text
        names = [json.loads(one)["custom_id"] for one in output.splitlines()]
        seconds = f"{time.monotonic() - began:.0f} s and {kills} kills"
        sys.stdout.write(f"{batch['status']} after {seconds}: {len(names)} results, {len(set(names))} different\n")
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
