"""A server under load: its client, its prompts, and its process."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Ask, Call, Client, Target
from pyllmcancel.bench.prompts import Prompts
from pyllmcancel.bench.server_truth import cpu_seconds, stopped_after


class Workbench:
    """A server under load."""

    def __init__(self, client: Client, prompts: Prompts, pid: int | None, prompt_seed: str | None) -> None:
        self.client = client
        self.prompts = prompts
        self.pid = pid  # of the server's process, if it is to be watched; it must be on this machine
        self._series = uuid.uuid4().hex[:8]
        # By default each workbench has other words: a prompt that a server has cached costs it nothing.
        self.prompt_seed = self._series if prompt_seed is None else prompt_seed
        self._n_names = 0

    def new_id(self) -> str:
        """Return a request id that no other run has used: a server that knows ids refuses one that is live."""
        self._n_names += 1
        return f"bench-{self._series}-{self._n_names}"

    def new_key(self) -> str:
        """Return a supersede key that no other request has."""
        return f"key-{self.new_id()}"

    def prompt(self, n_tokens: int, name: str) -> str:
        """Return a prompt of about `n_tokens` tokens; prompts of different names differ from their first words on."""
        return self.prompts.make(n_tokens, f"{self.prompt_seed}: {name}")

    def start(self, prompt: str | list[int], max_tokens: int, **more: Any) -> Call:
        """Begin a request; `more` is as in `Ask`."""
        return self.client.start(Ask(prompt=prompt, max_tokens=max_tokens, request_id=self.new_id(), **more))

    async def settle(self) -> None:
        """Wait until the server's process is idle, so that no work of one measurement falls into the next."""
        if self.pid is not None:
            await stopped_after(self.pid, time.monotonic())


async def open_workbench(target: Target, *, pid: int | None = None, prompt_seed: str | None = None) -> Workbench:
    """Find out how the server counts tokens, and which model it serves if `target` names none. ExchangeError if it
    cannot be reached, ProcessLookupError if there is no such process, or it is not the server's.
    """
    client = Client(target)
    if not target.model:
        client.target = replace(target, model=await served_model(client))
    before = cpu_seconds(pid) if pid is not None else 0.0
    prompts = await Prompts.learn(client)
    if pid is not None and cpu_seconds(pid) <= before:
        # It may be a launcher's, whose figures would all be zero.
        raise ProcessLookupError(
            f"process {pid} used no CPU time while the server answered: it is not the server's process"
        )
    return Workbench(client, prompts, pid, prompt_seed)


async def served_model(client: Client) -> str:
    """Return the first model that the server lists."""
    listed = await client.fetch_json("GET", "/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ExchangeError("bad_answer", "the server lists no model: name one") from None
