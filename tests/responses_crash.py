"""Servers that are killed in the middle of their work: what they have acknowledged is there at the next start.

``python -m tests.responses_crash --rounds 20 --answers 1000`` asks for answers in the background, of which a third is
cancelled, a third abandoned, and a third waited for; kills the server with SIGKILL at a random moment; starts it again
on the same file, and compares with the events that its clients had got.
"""

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pyllmcancel.server.responses.storage.database import LIVE
from pyllmcancel.server.responses.storage.rows import LOST
from tests.support.http_process import ServerProcess
from tests.support.tiny_models import write_tiny_llama

WORKERS = 32
ENDED = {"completed", "incomplete", "cancelled", "failed"}
# What the model must say, whole: an answer that is complete has all of it.
SAYINGS = [f"{letter * 150} and so on, to the end" for letter in "abcde"]


@dataclass
class Truth:
    """The events that the clients of one round got.

    Attributes
    ----------
    acknowledged
        Numbers of answers by the ids of responses.
    ended
        Responses that clients have seen in a last state, by id.
    """

    acknowledged: dict[str, int] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)


def asked(number: int, *, stream: bool) -> dict[str, Any]:
    schema = {"type": "string", "enum": [SAYINGS[number % len(SAYINGS)]]}
    return {
        "input": f"answer {number}",
        "background": True,
        "stream": stream,
        "metadata": {"number": str(number)},
        "text": {"format": {"type": "json_schema", "name": "saying", "schema": schema, "strict": True}},
    }


class Round:
    """One server's life. The kill comes when `kill_after` answers are acknowledged."""

    def __init__(self, server: ServerProcess, n_answers: int, kill_after: int) -> None:
        self.truth = Truth()
        self._server = server
        self._numbers = iter(range(n_answers))
        self._kill_after = kill_after

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=WORKERS * 2)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=60.0, limits=limits) as client:
            await asyncio.gather(*(self._work(client) for _ in range(WORKERS)))
        self._server.signal(signal.SIGKILL)
        self._server.wait()

    async def _work(self, client: httpx.AsyncClient) -> None:
        ways = (self._cancel, self._abandon, self._wait)
        with suppress(httpx.TransportError):  # it was killed
            for number in self._numbers:
                await ways[number % 3](client, number)

    async def _cancel(self, client: httpx.AsyncClient, number: int) -> None:
        name = await self._create(client, number)
        await asyncio.sleep(random.uniform(0.0, 0.1))
        answer = await client.post(f"/v1/responses/{name}/cancel")
        if answer.status_code == 200:
            self.truth.ended[name] = answer.json()
        else:
            assert "Cannot cancel a completed response" in answer.text, answer.text

    async def _abandon(self, client: httpx.AsyncClient, number: int) -> None:
        async with client.stream("POST", "/v1/responses", json=asked(number, stream=True)) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self._acknowledge(json.loads(line.removeprefix("data: "))["response"]["id"], number)
                    return

    async def _wait(self, client: httpx.AsyncClient, number: int) -> None:
        name = await self._create(client, number)
        while True:
            found = (await client.get(f"/v1/responses/{name}")).raise_for_status().json()
            if found["status"] in ENDED:
                self.truth.ended[name] = found
                return
            await asyncio.sleep(0.02)

    async def _create(self, client: httpx.AsyncClient, number: int) -> str:
        answer = await client.post("/v1/responses", json=asked(number, stream=False))
        name: str = answer.raise_for_status().json()["id"]
        self._acknowledge(name, number)
        return name

    def _acknowledge(self, name: str, number: int) -> None:
        self.truth.acknowledged[name] = number
        if len(self.truth.acknowledged) == self._kill_after:
            self._server.signal(signal.SIGKILL)


def check(server: ServerProcess, truth: Truth) -> Counter[str]:
    """Ask the next server for everything that the last one has acknowledged; how many are in which state."""
    found = Counter[str]()
    for name, number in truth.acknowledged.items():
        answer = server.http.get(f"/v1/responses/{name}")
        assert answer.status_code == 200, f"{name} is lost: {answer.text}"
        response = answer.json()
        assert response["metadata"] == {"number": str(number)}
        check_state(response, number)
        if name in truth.ended:
            assert response == truth.ended[name], f"{name} has changed"
        found[response["status"]] += 1
    return found


def check_state(response: dict[str, Any], number: int) -> None:
    """It has ended, and what is complete is whole."""
    assert response["status"] in ENDED - {"incomplete"}, response
    if response["status"] == "completed":
        assert json.loads(response["output"][0]["content"][0]["text"]) == SAYINGS[number % len(SAYINGS)]
    else:
        assert response["error"] is not None
        assert response["completed_at"] is None


def check_file(path: Path, truths: list[Truth]) -> int:
    """All rounds' answers are in the file once, and none of them runs; how many there are."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, status, response FROM responses").fetchall()
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names)
    assert {name for truth in truths for name in truth.acknowledged} <= set(names)
    for _, status, text in rows:
        response = json.loads(text)
        if status == LOST:  # its text is still that of its beginning: it is changed where it is read
            assert response["status"] in LIVE
        else:
            assert response["status"] == status
            check_state(response, int(response["metadata"]["number"]))
    return len(rows)


def run(folder: Path, rounds: int, n_answers: int, seed: int) -> None:
    """AssertionError for anything that is lost, doubled, or complete although it was not."""
    random.seed(seed)
    model, path = write_tiny_llama(folder / "model.gguf", n_ctx_train=4096), folder / "responses.db"
    options = ("--model", str(model), "--store", str(path), "--parallel", "8", "--max-queue", str(n_answers))
    truths: list[Truth] = []
    for number in range(rounds):
        with ServerProcess(*options) as server:
            server.started()
            if truths:
                found = check(server, truths[-1])
                print(f"round {number}: {len(truths[-1].acknowledged)} acknowledged, {dict(found)}", flush=True)  # noqa: T201
            going = Round(server, n_answers, random.randint(1, n_answers))
            asyncio.run(going.run())
            truths.append(going.truth)
    with ServerProcess(*options) as server:
        server.started()
        found = check(server, truths[-1])
        print(f"round {rounds}: {len(truths[-1].acknowledged)} acknowledged, {dict(found)}")  # noqa: T201
        server.signal()
        server.wait()
    n_rows = check_file(path, truths)
    n_acknowledged = sum(len(truth.acknowledged) for truth in truths)
    print(f"{n_acknowledged} acknowledged in {rounds} rounds, all there; {n_rows} in the file, none twice")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), arguments.rounds, arguments.answers, arguments.seed)


if __name__ == "__main__":
    main()
