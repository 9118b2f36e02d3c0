"""Clients that ask all the while, and what became of every request."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.http_process import CHAT, COMPLETIONS, LIMIT, fresh_id

AT_ONCE = 6  # of each kind
MAX_TOKENS = 600


@dataclass
class Seen:
    """The outcomes of all requests."""

    ended: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


class SteadyClients(AbstractContextManager["SteadyClients"]):
    """They ask through one port, in a thread of their own, until the block ends; then `seen` is whole.

    Some name a session, some nothing. Some type: they send a newer request of their key while an older one is computed.
    """

    def __init__(self, port: int, seed: int = 1) -> None:
        self.seen = Seen()
        self._url = f"http://127.0.0.1:{port}"
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), name="clients")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT, limits=limits) as client:
            clients = [self._ask_on(client, {"X-Session-Id": f"asker {i}"}) for i in range(AT_ONCE)]
            clients += [self._ask_on(client, {}) for _ in range(AT_ONCE)]
            typists = [self._type_on(client, {"X-Supersede": f"typist {i}"}) for i in range(AT_ONCE)]
            await asyncio.gather(*clients, *typists)

    async def _ask_on(self, client: httpx.AsyncClient, names: dict[str, str]) -> None:
        while not self._stop.is_set():
            self._count(*await self._ask(client, names), expected=("complete",))

    async def _type_on(self, client: httpx.AsyncClient, names: dict[str, str]) -> None:
        """A letter now and then; each asks for more than can be computed until the next."""
        older: asyncio.Task[tuple[str, str]] | None = None
        while not self._stop.is_set():
            newer = asyncio.create_task(self._ask(client, names))
            await asyncio.wait([newer], timeout=self._chance.uniform(0.05, 0.4))
            if older is not None:
                self._count(*await older, expected=("complete", "superseded"))
            older = newer
        if older is not None:
            self._count(*await older, expected=("complete",))

    def _count(self, request_id: str, outcome: str, expected: tuple[str, ...]) -> None:
        self.seen.ended[outcome] += 1
        if outcome not in expected:
            self.seen.failed.append(f"{request_id}: {outcome}")

    async def _ask(self, client: httpx.AsyncClient, names: dict[str, str]) -> tuple[str, str]:
        """Send one; its id, and what came of it: only an answer with its proper ending is complete."""
        request_id = fresh_id()
        path = self._chance.choice((COMPLETIONS, CHAT))
        asked: dict[str, Any] = {"max_tokens": self._chance.randrange(1, MAX_TOKENS), "ignore_eos": True}
        asked |= {"prompt": "hello"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hello"}]}
        asked["stream"] = self._chance.random() < 0.5
        try:
            answer = await client.post(path, json=asked, headers={"X-Request-Id": request_id, **names})
        except httpx.HTTPError as error:
            return request_id, repr(error)
        return request_id, outcome_of(answer, streams=asked["stream"])


def outcome_of(answer: httpx.Response, *, streams: bool) -> str:
    if streams and answer.status_code == 200:
        told = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
        if told and told[-1] == "[DONE]":
            return "complete"
        body = json.loads(told[-1]) if told else {}
    else:
        body = answer.json()
        if answer.status_code == 200 and body["choices"][0]["finish_reason"] == "length":
            return "complete"
    code = (body.get("error") or {}).get("code")
    return "superseded" if code == "superseded" else f"{answer.status_code} {code}"
