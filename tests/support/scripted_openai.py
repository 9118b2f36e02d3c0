"""A small OpenAI-compatible server over `ScriptedServer`: a word is a token, answers come at once or when allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support import scripted_server as wire
from tests.support.scripted_server import Peer, Received, ScriptedServer

NOT_FOUND = {"error": {"message": "no such path", "code": "not_found"}}


class ScriptedOpenAI:
    """Answers everything, and remembers what it was asked for.

    By `counts` its answers say how many ``words`` the prompt has, or two tokens a word and five for a template
    (``usage``), or ``nothing``.
    """

    def __init__(self, counts: str = "words") -> None:
        self.counts = counts
        self.held: int | None = None  # prompts of more words get no answer: the server waits until their client leaves
        self.held_below = 0  # nor do prompts of fewer words that come in a session
        self.together = 0  # the number of requests that must come before any answer begins
        self._asked = asyncio.Event()
        self.asked: list[Received] = []
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedOpenAI]:
        async with ScriptedServer.open(self._handle) as server:
            self.url = server.url
            yield self

    @property
    def prompts(self) -> list[str]:
        return [received.fields["prompt"] for received in self.asked]

    async def _handle(self, peer: Peer) -> None:
        while True:
            received = await peer.receive()
            _, path, _ = received.line.split()
            match path.partition("?")[0]:
                case "/v1/models":
                    peer.send(wire.whole({"data": [{"id": "scripted"}]}))
                case "/v1/completions":
                    self.asked.append(received)
                    await self._complete(peer, received)
                case _:
                    peer.send(wire.whole(NOT_FOUND, "404 Not Found"))

    def _holds(self, received: Received, n_words: int) -> bool:
        if "x-session-id" in received.headers and n_words < self.held_below:
            return True
        return self.held is not None and n_words > self.held

    async def _complete(self, peer: Peer, received: Received) -> None:
        fields = received.fields
        n_words = len(fields["prompt"].split())
        self._asked.set()
        while len(self.asked) < self.together:
            self._asked.clear()
            await self._asked.wait()
        if self._holds(received, n_words):
            await peer.gone()
            raise ConnectionResetError
        if not fields.get("stream"):
            answer = wire.completion("a" * fields["max_tokens"])
            answer["usage"] = self._usage(n_words, fields["max_tokens"])
            peer.send(wire.whole(answer))
            return
        peer.send(wire.STREAM_HEAD)
        for number in range(fields["max_tokens"]):
            last = number == fields["max_tokens"] - 1
            peer.send(wire.chunk(wire.event(wire.token("a ", "length" if last else None))))
            await asyncio.sleep(0)
        peer.send(wire.chunk(wire.event({"choices": [], "usage": self._usage(n_words, fields["max_tokens"])})))
        peer.send(wire.chunk(wire.DONE) + wire.LAST_CHUNK)

    def _usage(self, n_words: int, n_tokens: int) -> dict[str, int] | None:
        if self.counts == "nothing":
            return None
        n_prompt = n_words if self.counts == "words" else 2 * n_words + 5
        return {"prompt_tokens": n_prompt, "completion_tokens": n_tokens}
