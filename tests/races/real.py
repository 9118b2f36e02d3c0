"""The compiled engine on a tiny model, and what its requests get."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllmcancel import _native
from pyllmcancel._native import Context
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.events import Event
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Bound, LoopSink
from tests.native.conftest import SAME_TOKENS_IN_COMPANY
from tests.support.device import load_model
from tests.support.driver import RecordingSink, Watcher, split_origin
from tests.support.step_gate import TEST_LIMIT
from tests.support.threads import N_THREADS


class ReadInLoop(LoopSink):
    """Events for a reader in an event loop, all of which are kept."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(asyncio.get_running_loop(), bound)
        self.record = RecordingSink()

    def put(self, event: Event) -> None:
        super().put(event)
        self.record.put(event)


class Real:
    """An engine on a tiny model, and what its requests get."""

    def __init__(self, path: Path, *, n_ctx: int = 4096, **config: Any) -> None:
        self.path, self.watcher = path, Watcher()
        self.config = EngineConfig(**{"parallel": 3, "kv_unified": True} | config)
        unified = self.config.kv_unified is True
        n_seq_max = self.config.parallel + (2 if unified else 0)
        sizes = {"n_ctx": n_ctx, "n_seq_max": n_seq_max, "n_batch": 64, "n_threads": N_THREADS}
        # As the engine makes them, cells of one's own need no other types.
        options = {} if self.config.kv_unified is None else SAME_TOKENS_IN_COMPANY
        context = Context(load_model(path), **sizes, **options, kv_unified=unified)
        self.engine = Engine(Generation(context, self.config, _native), observer=self.watcher)
        self.sinks: dict[str, RecordingSink] = {}

    def submit(self, prompt: list[int], *, reader: ReadInLoop | None = None, **options: Any) -> Request:
        """Submit greedily, for a `reader` in an event loop if there is one."""
        record = RecordingSink() if reader is None else reader.record
        origin = split_origin(options)
        params = generation_params(**{"temperature": 0.0, "max_tokens": 8} | options)
        request = self.engine.submit([prompt], params, reader or record, **origin)
        self.sinks[request.id] = record
        return request

    def tokens(self, request: Request, index: int = 0) -> list[int]:
        sink = self.sinks[request.id]
        sink.ending()
        return sink.tokens(index)

    def check_nothing_left(self) -> None:
        assert self.engine.registry.wait_until_empty(TEST_LIMIT)
        assert self.engine.counts() == (0, 0, 0, 0)
        assert self.engine.failure is None
        assert sorted(name for name, _ in self.watcher.endings) == sorted(self.sinks)
        for sink in self.sinks.values():
            sink.ending()


def check_and_close(made: Sequence[Real]) -> None:
    try:
        for one in made:
            one.check_nothing_left()
    finally:
        for one in made:
            one.engine.close()
