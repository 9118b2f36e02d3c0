"""Prometheus metrics, written by the thread that ends the computation."""

from __future__ import annotations

import asyncio
import platform
import tomllib
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from importlib.resources import files
from statistics import median_low

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyllmcancel import __version__
from pyllmcancel.cancellation import CancelReason
from pyllmcancel.drafting.sources import SOURCES
from pyllmcancel.engine.engine import Engine
from pyllmcancel.events import Ending, FinishReason, Limit
from pyllmcancel.requests.observer import Observer, StepRecord
from pyllmcancel.requests.request import Request
from pyllmcancel.server.running.llama_metrics import LlamaMetrics, Totals
from pyllmcancel.server.timer import Timer

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
TIME_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
N_LENGTHS = 101  # of answers whose median is the expected length of others


class Registry(CollectorRegistry):
    """A registry without ``…_created``: the client's library adds one such gauge for each counter and histogram."""

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class EngineMetrics(Observer):
    """An observer that counts. Each server has a registry, so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._llama = LlamaMetrics()
        self._engine: weakref.ref[Engine] | None = None  # weak: the engine's thread has this observer
        self._requests = self._counter("requests_total", "Requests that have ended, by outcome.", "outcome")
        self._cancelled = self._counter("requests_cancelled_total", "Cancelled requests, by reason.", "reason")
        # Set from the start, so that a rate includes the first event.
        for outcome in (*FinishReason, Limit.REPETITION):
            self._requests.labels(outcome)
        for reason in CancelReason:
            self._cancelled.labels(reason)
        self._queue = self._histogram(
            "queue_seconds", "Time from arrival to admission; not of idle requests.", TIME_BUCKETS, "owner"
        )
        self._ttft = self._histogram("ttft_seconds", "From arrival to first token; not of idle requests.", TIME_BUCKETS)
        self._itl = self._histogram("itl_seconds", "Time between two tokens of a choice.", TIME_BUCKETS)
        self._latency = self._histogram(
            "cancel_latency_seconds",
            "Time from a cancel until the computation has stopped and the slot is free.",
            LATENCY_BUCKETS,
            "phase",
        )
        self._step = self._histogram("step_seconds", "Duration of a step.", TIME_BUCKETS)
        self._turn = self._histogram(
            "engine_turn_seconds",
            "Time between two steps of a request: the engine's own work, and waiting.",
            LATENCY_BUCKETS,
        )
        self.lag = self._histogram("event_loop_lag_seconds", "Event loop's lag: how late timers fire.", LATENCY_BUCKETS)
        self._last_step: StepRecord | None = None  # written by the engine thread
        self._computed = self._counter("tokens_computed_total", "Tokens computed, in steps that were not undone.")
        self._prompt = self._counter(
            "prompt_tokens_total", "Tokens of prompts computed, in steps that were not undone; some more than once."
        )
        self._delivered = self._counter("tokens_delivered_total", "Tokens of answers that were not cancelled.")
        self._wasted = self._counter("tokens_wasted_total", "Tokens computed after a cancel, or in an aborted step.")
        self._saved = self._counter(
            "tokens_saved_total",
            "Tokens that cancels saved: of prompts, and of answers up to their limits. An answer without a limit "
            "counts as long as the median of the last ones that ended.",
        )
        self._unlimited: deque[int] = deque(maxlen=N_LENGTHS)  # the lengths of answers without a limit
        self._reused = self._counter("prefix_tokens_reused_total", "Prompt tokens found in the cache.")
        self._drafted = self._counter("drafted_tokens_total", "Tokens drafted for ended requests, by source.", "source")
        self._accepted_drafts = self._counter("accepted_draft_tokens_total", "Those of them in an answer.", "source")
        for source in SOURCES:
            self._drafted.labels(source)
            self._accepted_drafts.labels(source)
        self._aborted = self._counter("steps_aborted_total", "Steps aborted in the middle.")
        self._redone = self._counter("steps_redone_total", "Aborted steps that were computed again for the survivors.")
        self._spared = self._counter("steps_spared_total", "Steps not aborted after a cancel, for the survivors' sake.")

    def watch(self, engine: Engine, model_name: str) -> None:
        """Add the gauges of `engine`, which are read at each scrape."""
        self._engine = weakref.ref(engine)
        self.registry.register(EngineGauges(engine, model_name))

    def totals(self) -> Totals:
        """Return the counts since the start."""
        return Totals(
            prompt_tokens=_value(self._prompt),
            computed_tokens=_value(self._computed),
            wasted_tokens=_value(self._wasted),
            reused_tokens=_value(self._reused),
            saved_tokens=_value(self._saved),
            drafted_tokens=sum(_value(self._drafted.labels(source)) for source in SOURCES),
            accepted_tokens=sum(_value(self._accepted_drafts.labels(source)) for source in SOURCES),
            aborted_steps=_value(self._aborted),
            cancels={reason: _value(self._cancelled.labels(reason)) for reason in CancelReason},
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def llama_exposition(self) -> str:
        """Return the metrics under llama-server's names."""
        return self._llama.exposition(None if self._engine is None else self._engine(), self.totals())

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pyllmcancel_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"pyllmcancel_{name}", text, labels, buckets=buckets, registry=self.registry)

    def request_ended(self, request: Request, ending: Ending) -> None:
        repeats = ending.limit is Limit.REPETITION
        self._requests.labels(ending.limit if repeats else ending.finish_reason).inc()
        self._llama.request_ended(request)
        self._reused.inc(ending.usage.cached_tokens)
        for source, n_drafted, n_accepted in ending.usage.drafts:
            self._drafted.labels(source).inc(n_drafted)
            self._accepted_drafts.labels(source).inc(n_accepted)
        if request.admitted_at is not None and not request.is_idle:
            self._queue.labels(request.owner or "-").observe(request.admitted_at - request.arrived_at)
        if ending.cancel_reason is not None and ending.cancel_latency is not None:
            self._cancelled.labels(ending.cancel_reason).inc()
            self._latency.labels(ending.phase).observe(ending.cancel_latency)
            self._saved.inc(request.n_uncomputed(median_low(self._unlimited or (0,))))
        elif ending.error is None:
            self._delivered.inc(ending.usage.completion_tokens)
            if request.params.max_tokens is None:
                self._unlimited.extend(len(choice.generated) for choice in request.choices)

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        self._step.observe(record.seconds)
        self._llama.step_done(record)
        self._clock_turn(record)
        self._wasted.inc(n_wasted)
        if record.status == "ok":
            self._computed.inc(record.n_tokens)
            self._prompt.inc(sum(part.n_tokens for part in record.sequences if part.phase == "prefill"))
        elif record.status == "aborted":
            self._aborted.inc()
            self._redone.inc(min(record.survivors, 1))
        if record.spared:
            self._spared.inc()

    def _clock_turn(self, record: StepRecord) -> None:
        """Observe the time since the former step, if a request was in both: else the engine may have been idle."""
        former, self._last_step = self._last_step, record
        if former is None:
            return
        names = {part.request for part in former.sequences}
        if any(part.request in names for part in record.sequences):
            self._turn.observe(max(0.0, record.started_at - former.started_at - former.seconds))

    def first_token(self, request: Request, seconds: float) -> None:
        if not request.is_idle:
            self._ttft.observe(seconds)
        self._llama.first_token(request, seconds)

    def next_token(self, request: Request, seconds: float) -> None:
        self._itl.observe(seconds)
        self._llama.next_token(seconds)


class EngineGauges(Collector):
    """Metrics of the served model, of live requests, and of the engine's own counts."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        # A weak reference: the engine's thread has this observer.
        self._engine = weakref.ref(engine)
        model = engine.model
        self._facts = (
            _info(
                "build",
                "Versions of this server and of its parts.",
                version=__version__,
                llama_cpp=llama_cpp_commit(),
                python=platform.python_version(),
            ),
            _info("model", "Served model.", name=model_name, description=model.description, memory=model.memory_kind),
        )

    def collect(self) -> Iterable[Metric]:
        engine = self._engine()
        if engine is None:
            return
        yield from self._facts
        for name, value, text in (*_capacity(engine), *_live(engine)):
            yield GaugeMetricFamily(f"pyllmcancel_{name}", text, value)
        for name, value, text in _counts(engine):
            yield CounterMetricFamily(f"pyllmcancel_{name}", text, value)
        text = "Prefixes that were not written, or not restored, by the cause."
        refused = CounterMetricFamily("pyllmcancel_disk_prefixes_refused", text, None, ["cause"])
        for reason, count in engine.disk_counts.refused.items():
            refused.add_metric([reason], count)
        yield refused


Sample = tuple[str, float, str]


def _capacity(engine: Engine) -> Iterable[Sample]:
    capacity = engine.capacity
    return (
        ("model_size_bytes", engine.model.size, "Size of the model's tensors."),
        ("model_context_tokens", engine.n_ctx, "Limit of one request's tokens, prompt and answer together."),
        ("slots", capacity.slots, "Number of slots: choices that can compute at once."),
        ("cells", capacity.cells, "Number of cells: tokens of all requests that can be kept at once."),
    )


def _counts(engine: Engine) -> Iterable[Sample]:
    disk = engine.disk_counts
    return (
        ("generated_tokens", engine.n_generated, "Tokens generated, including those for cancelled requests."),
        ("preemptions", engine.n_preempted, "Slots taken back from choices, which are resumed later."),
        ("disk_prefixes_written", disk.n_written, "Prefixes written to disk."),
        ("disk_written_bytes", disk.written_bytes, "Bytes written to disk."),
        ("disk_prefixes_restored", disk.n_restored, "Prefixes read from disk for requests."),
        ("disk_restored_bytes", disk.restored_bytes, "Bytes read from disk for requests."),
    )


def _live(engine: Engine) -> Iterable[Sample]:
    counts, occupancy, disk = engine.counts(), engine.occupancy(), engine.disk_counts
    return (
        ("engine_dead", engine.failure is not None, "1 if the engine thread has died, after which nothing is served."),
        ("requests_waiting", counts.waiting, "Live requests in the queue."),
        ("requests_running", counts.running, "Live requests that hold a slot, or were preempted."),
        (
            "requests_paused",
            n_paused(engine),
            "Running requests without a slot: clients do not read, prefixes are read from disk, or others come first.",
        ),
        ("requests_cancelling", counts.cancelling, "Cancelled requests whose computation has not stopped yet."),
        ("sessions_live", counts.sessions, "Sessions with a live request."),
        ("slots_used", occupancy.slots, "Slots of running choices."),
        ("cells_used", occupancy.cells, "Cells of running choices."),
        ("cells_idle", occupancy.idle_cells, "Cells of idle prefixes."),
        ("compute_threads", engine.n_threads, "Compute threads of the running step, or of the last one."),
        ("asyncio_tasks", n_tasks(), "Tasks of the server's event loop, including the one for this answer."),
        ("checkpoint_bytes", occupancy.checkpoint_bytes, "Bytes of copies of states that cannot be rolled back."),
        ("swapped_bytes", occupancy.swapped_bytes, "Bytes of idle prefixes that were copied out of the cells."),
        ("past_answers_bytes", engine.past_answers_bytes, "Bytes of answers that later ones are drafted from."),
        ("disk_bytes", disk.n_bytes, "Bytes of prefixes on disk, those of other models included."),
        ("disk_prefixes", disk.n_files, "Number of prefixes on disk, those of other models included."),
    )


def _info(name: str, text: str, /, **labels: str) -> Metric:
    """Return a gauge that is always 1, with constants in its labels."""
    family = GaugeMetricFamily(f"pyllmcancel_{name}_info", text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def llama_cpp_commit() -> str:
    """Return the commit of llama.cpp that is compiled in, by the pin in the package or in the checkout."""
    package = files("pyllmcancel")
    pins = (package / "llama_cpp_pin.toml", package / ".." / "vendor" / "llama.cpp" / "PIN.toml")
    pin = next(pin for pin in pins if pin.is_file())
    return str(tomllib.loads(pin.read_text("utf-8"))["llama_cpp"]["commit"])


def n_paused(engine: Engine) -> int:
    return sum(request.paused for request in engine.registry.requests())


def _value(counter: Counter) -> int:
    (family,) = counter.collect()
    return next(int(sample.value) for sample in family.samples if sample.name.endswith("_total"))


def n_tasks() -> int:
    """Return the number of tasks of the running event loop; 0 if none runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


EVERY_SECONDS = 0.1


class LoopLag:
    """Measures how late a timer fires in the running event loop, again and again."""

    def __init__(self, observe: Callable[[float], object], every: float = EVERY_SECONDS) -> None:
        self._observe = observe
        self._every = every
        self._timer = Timer()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._every

        def come() -> None:
            self._observe(max(0.0, loop.time() - due))
            self.start()

        self._timer.start(self._every, come)

    def stop(self) -> None:
        """Idempotent."""
        self._timer.stop()
