"""A real engine on the fake context, driven one thing at a time.

The engine has its thread, as always. But its steps wait at the context's gate, and `Driver.settle` returns only when a
step waits there, or when nothing is left to do: between calls nothing moves, and events always have one order.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyllmcancel.adapters import Adapter
from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.draft_model import DraftModel
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.events import Delta, Ending, Event, FinishReason
from pyllmcancel.requests.observer import Observer, StepRecord
from pyllmcancel.requests.registry import PREPARING_SECONDS
from pyllmcancel.requests.request import Origin, Request
from pyllmcancel.requests.token_stream import ThreadSink, ThreadStream
from pyllmcancel.scheduling.disk_floor import DiskFloor
from pyllmcancel.step import StepItem, StepResult
from tests.support import fake_native
from tests.support.step_gate import TEST_LIMIT

CHUNK = 16  # n_batch of the fake context: a prompt alone computes in chunks of this
# What a driver's requests may be remembered with. Divided cells are what `serve --parallel N` selects.
MEMORIES: dict[str, dict[str, Any]] = {
    "attention": {},
    "divided": {"kv_unified": False},
    "hybrid": {"memory_kind": "hybrid"},
}
# And with steps that begin before the last one's results are taken.
AHEAD = {f"{name}, ahead": options | {"steps_ahead": True} for name, options in MEMORIES.items()}


def split_origin(options: dict[str, Any]) -> Origin:
    """Take the fields of `Origin` out of flat options."""
    return cast("Origin", {name: options.pop(name) for name in Origin.__annotations__ if name in options})


@dataclass
class LeavingClient:
    """A client that leaves when a test says so."""

    left: bool = False

    def has_left(self) -> bool:
        return self.left


class RecordingSink(ThreadSink):
    """Keeps every event; `on_event` runs in the engine thread, which waits for it. It is `full` when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.record: list[Event] = []
        self._ended = threading.Event()
        self.on_event: Callable[[Event], None] = lambda _: None
        self.on_ended: Callable[[], None] = lambda: None

    def put(self, event: Event) -> None:
        self.record.append(event)
        super().put(event)
        if isinstance(event, Ending):
            self._ended.set()
            self.on_ended()
        self.on_event(event)

    def ending(self) -> Ending:
        """The one ending, waited for: `Request.ended` tells it before the last events come here."""
        assert self._ended.wait(TEST_LIMIT), "no ending"
        (ending,) = self.endings
        return ending

    @property
    def ended(self) -> bool:
        """Return whether the ending has come."""
        return self._ended.is_set()

    @property
    def endings(self) -> list[Ending]:
        return [event for event in self.record if isinstance(event, Ending)]

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.record if isinstance(event, Delta)]

    def tokens(self, index: int = 0) -> list[int]:
        return [token for delta in self.deltas if delta.index == index for token in delta.tokens]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)


@dataclass(eq=False, slots=True)
class Tracked:
    """A request of a test, all its events, and the stream that its reader holds."""

    request: Request
    client: LeavingClient
    sink: RecordingSink
    stream: ThreadStream | None
    prompt: list[int]
    expected: list[int] = field(default_factory=list)  # what it would get alone and not cancelled
    n_steps_at_end: int | None = None
    fails: bool = False  # the test made its computation fail

    @property
    def ending(self) -> Ending:
        """Waits for it."""
        return self.request.ended.result(TEST_LIMIT)

    @property
    def ended(self) -> bool:
        return self.request.ended.done()


@dataclass
class Watcher(Observer):
    """Counts, and stops the engine thread (or a submitter) at the places that a test names."""

    steps: list[StepRecord] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    endings: list[tuple[str, Ending]] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    on_added: Callable[[Request], None] = lambda _: None
    on_step_done: Callable[[StepRecord], None] = lambda _: None

    def request_added(self, request: Request) -> None:
        self.added.append(request.id)
        self.on_added(request)

    def request_admitted(self, request: Request) -> None:
        self.admitted.append(request.id)

    def request_cancelled(self, request: Request) -> None:
        self.cancelled.append(request.id)

    def request_ended(self, request: Request, ending: Ending) -> None:
        self.endings.append((request.id, ending))

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        self.steps.append(record)
        self.on_step_done(record)


class Stop:
    """A place where another thread waits for the test: once, then it is open."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._go_on = threading.Event()

    def here(self, *_: Any) -> None:
        self._reached.set()
        assert self._go_on.wait(TEST_LIMIT), "the test never let this thread go on"

    def wait_reached(self) -> None:
        assert self._reached.wait(TEST_LIMIT), "no thread came here"

    def go_on(self) -> None:
        self._go_on.set()


class Driver:
    """An engine whose every step waits for the test."""

    def __init__(
        self,
        *,
        memory_kind: str = "attention",
        parallel: int = 2,
        n_ctx: int = 512,
        spare_seqs: int = 2,
        kv_unified: bool = True,
        gpu: bool = False,
        draft: fake_native.Model | None = None,
        disk: DiskFloor | None = None,
        encoder: fake_native.MediaEncoder | None = None,
        adapters: Sequence[Adapter] = (),
        **config: Any,
    ) -> None:
        self.model = fake_native.Model(memory_kind, gpu=gpu)
        self.model.adapters = list(adapters)
        # As Engine.load does: of divided cells each slot has so many, of its own.
        n_seq_max = parallel + (spare_seqs if kv_unified else 0)
        n_cells = n_ctx if kv_unified else n_ctx * n_seq_max
        sizes = {"n_ctx": n_cells, "n_seq_max": n_seq_max, "n_batch": CHUNK, "n_threads": 1}
        self.context = fake_native.Context(self.model, **sizes, kv_unified=kv_unified)
        # What a step costs is measured, in a test as anywhere, but nothing here may depend on it.
        self.context.step_cost = (0.0, 1.0)
        targets = {"itl_target": 1e9, "max_step_seconds": 1e9}
        # One token a step, unless drafts are what a test is about.
        config = {"draft_sources": (), "lora": tuple((Path("adapter.gguf"), 0.0) for _ in adapters)} | config
        self.config = EngineConfig(parallel=parallel, kv_unified=kv_unified, **targets, **config)
        self.watcher = Watcher()
        self.gate = self.context.gate
        self.gate.hold()
        self.draft_context: fake_native.Context | None = None
        draft_model = None
        if draft is not None:  # its steps run through, and seem to cost next to nothing
            self.draft_context = fake_native.Context(draft, **sizes, kv_unified=kv_unified)
            draft_model = DraftModel(self.draft_context, self.context, self.config, fake_native, clock=lambda: 0.0)
        self.encoder = encoder
        workload = Generation(self.context, self.config, fake_native, draft_model, disk, encoder=encoder)
        self.engine = Engine(workload, observer=self.watcher)
        self.dead = False  # the test has killed the engine
        self.tracked: list[Tracked] = []
        self._live: list[Tracked] = []
        # Whether the engine thread sleeps, and may: everything that is left is paused, or waits for what is.
        self.asleep = self._may_sleep = False
        self._watch_sleep()

    def _watch_sleep(self) -> None:
        """Learn that the engine thread goes to sleep, in the moment in which the registry's lock lets it."""
        changed = self.engine.registry._changed
        wait_for = changed.wait_for

        def waiting(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
            if timeout in {None, PREPARING_SECONDS} and not predicate():
                self.asleep = True
                self.gate.wake()
            return wait_for(predicate, timeout)

        changed.wait_for = waiting

    def submit(self, prompt: str | Sequence[int] = "a prompt", *, settle: bool = True, **options: Any) -> Tracked:
        """Submit greedily; returns when the engine has gone as far as it can."""
        tokens = self.engine.tokens(prompt)
        origin = split_origin(options)
        keep_stream = options.pop("stream", False)
        params = generation_params(**{"temperature": 0.0, "max_tokens": 4} | options)
        client, sink = LeavingClient(), RecordingSink()
        sink.on_ended = self.gate.wake
        request = self.engine.submit([tokens], params, sink, client=client, **origin)
        expected = self.model.greedy(tokens, request.choices[0].max_tokens, request.choices[0].adapted)
        tracked = Tracked(request, client, sink, None, list(tokens), expected)
        if keep_stream:
            tracked.stream = ThreadStream(request, self.engine, sink)
        self.tracked.append(tracked)
        self._live.append(tracked)
        request.ended.add_done_callback(lambda _: self._note_end(tracked))
        if settle:
            self.settle()
        return tracked

    def answered(self, prompt: str | Sequence[int] = "a prompt", *, expected: Any = None, **options: Any) -> Tracked:
        """Submit, and run to the end. `expected` are the tokens, where they are not what the model says greedily."""
        tracked = self.submit(prompt, **options)
        if expected is not None:
            tracked.expected = list(expected)
        self.run_to_the_end()
        return tracked

    def _note_end(self, tracked: Tracked) -> None:
        tracked.n_steps_at_end = len(self.watcher.steps)
        self.gate.wake()

    def settle(self) -> None:
        """Wait until a step waits at the gate, every reader has its ending, or the engine sleeps beside paused ones."""
        requests = [(tracked.request, tracked.sink) for tracked in self._live]
        self._may_sleep = any(sink.full or request.paused or request.is_idle for request, sink in requests)
        if self._may_sleep:
            registry = self.engine.registry
            with registry._lock:  # whatever it does not know yet, it looks at before it sleeps again
                self.asleep = False
                registry._tell()
        with self.gate.changed:
            assert self.gate.changed.wait_for(self._quiet, TEST_LIMIT), "the engine neither computes nor is done"

    def _quiet(self) -> bool:
        self._live = [one for one in self._live if one.n_steps_at_end is None or not one.sink.ended]
        return self.gate.held() is not None or not self._live or (self._may_sleep and self.asleep)

    def step(self, count: int = 1) -> None:
        """Let the held step finish, and the engine go on to the next."""
        for _ in range(count):
            self.gate.let_through()
            self.settle()

    def step_until(self, reached: Callable[[], bool]) -> None:
        for _ in range(1000):
            if reached():
                return
            self.step()
        raise AssertionError("1,000 steps did not lead there")

    def stop_reading(self, tracked: Tracked) -> None:
        """Leave too much unread: the request pauses after the step that is held."""
        tracked.sink.full = True
        self.settle()

    def read_on(self, tracked: Tracked) -> None:
        tracked.sink.full = False
        self.engine.registry.wake()
        self.settle()

    def run_to_the_end(self) -> None:
        self.gate.open()
        for tracked in self.tracked:
            tracked.sink.full = False
        self.engine.registry.wake()
        self.settle()
        self.gate.hold()

    def holds(self, tracked: Tracked) -> bool:
        held = self.gate.held()
        return held is not None and tracked.request.cancellation.flag in held.flags

    def cancel(self, tracked: Tracked, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        decided = self.engine.cancel(tracked.request, reason)
        self.settle()
        return decided

    def expire(self, tracked: Tracked | Request) -> None:
        """Let its deadline be now: the watcher's own deadline, only the time is the test's."""
        request = tracked.request if isinstance(tracked, Tracked) else tracked
        self.engine._watcher.at_deadline(request, time.monotonic())

    def close(self) -> None:
        if self.draft_context is not None:
            self.draft_context.gate.open()
        self.gate.open()
        self.engine.close()


MakeDriver = Callable[..., Driver]  # the fixture `make_driver`


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    """Do `work` in another thread, joined at the end; what it raises is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="test-helper", daemon=True)
    thread.start()
    yield
    thread.join(TEST_LIMIT)
    assert not thread.is_alive(), "the thread hangs"
    if errors:
        raise errors[0]


def recorded_steps(context: fake_native.Context, *, at_least: int = 1) -> list[list[StepItem]]:
    """Return a list to which each later step of at least so many sequences adds its items."""
    found: list[list[StepItem]] = []
    step = context.step

    def recorded(items: Iterable[StepItem], **options: Any) -> StepResult:
        parts = list(items)
        if len(parts) >= at_least:
            found.append(parts)
        return step(parts, **options)

    context.step = recorded  # type: ignore[method-assign]
    return found


def complete(tracked: Tracked) -> bool:
    return tracked.ended and tracked.ending.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}


def cancel_session(engine: Engine, session: str, **options: Any) -> list[Request] | None:
    """Cancel a session's requests as the server does; returns them, None if the session is unknown."""
    family = engine.registry.family_to_cancel(session, **options)
    if family is None:
        return None
    requests = [request for members in family.values() for request in members]
    for request in requests:
        engine.cancel(request)
    return requests
