"""Engines that are not closed, and engines in forked children."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.server.running.metrics import EngineMetrics
from tests.support import fake_native
from tests.support.driver import RecordingSink
from tests.support.step_gate import TEST_LIMIT


def an_engine(observer: EngineMetrics | None = None) -> tuple[Engine, fake_native.Context]:
    context = fake_native.Context(fake_native.Model(), n_ctx=256, n_seq_max=3, n_batch=16, n_threads=1)
    return Engine(Generation(context, EngineConfig(parallel=1), fake_native), observer=observer), context


def assert_dropping_ends_it(engines: list[Engine]) -> None:
    """The engine in `engines`, to which there is no other reference."""
    gone = weakref.ref(engines[0])
    threads, stopped = (engines[0]._thread, engines[0]._watcher._thread), engines[0].stopped
    with pytest.warns(ResourceWarning, match="never closed"):
        engines.clear()
    gc.collect()
    assert gone() is None
    assert stopped.result(TEST_LIMIT) is None
    for thread in threads:
        thread.join(TEST_LIMIT)
        assert not thread.is_alive()


def test_metrics_that_watch_an_engine_do_not_keep_it() -> None:
    metrics = EngineMetrics()
    engine, _ = an_engine(metrics)
    metrics.watch(engine, "fake-model")
    engines = [engine]
    del engine
    assert_dropping_ends_it(engines)
    assert b"pyllmcancel_requests_running" not in metrics.exposition()


def test_requests_of_an_engine_that_is_dropped_end_as_cancelled() -> None:
    engine, context = an_engine()
    context.gate.hold()
    sinks = [RecordingSink() for _ in range(3)]
    requests = [engine.submit([[1, 2, 3]], generation_params(temperature=0.0), sink) for sink in sinks]
    context.gate.wait_held()
    engines = [engine]
    del engine
    assert_dropping_ends_it(engines)
    for request, sink in zip(requests, sinks, strict=True):
        assert request.ended.result(TEST_LIMIT).cancel_reason is CancelReason.SHUTDOWN
        assert sink.ending().cancel_reason is CancelReason.SHUTDOWN
    assert context.open_seqs == []


def test_a_stream_keeps_its_engine_alive() -> None:
    engine, _ = an_engine()
    stream = engine.generate("a prompt", temperature=0.0, max_tokens=3)
    dropped = weakref.ref(engine)
    del engine
    gc.collect()
    assert len(list(stream)) == 3
    dropped().close()  # type: ignore[union-attr]


def test_a_closed_engine_is_dropped_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    engine, _ = an_engine()
    engine.close()
    del engine
    gc.collect()
    assert [str(warning.message) for warning in recwarn.list] == []


UNCLOSED = """
import sys
from pathlib import Path
from pyllmcancel import Engine, EngineConfig
engine = Engine.load(EngineConfig(model=Path(sys.argv[1]), ctx_size=4096))
stream = engine.generate("hello", temperature=0.0, ignore_eos=True)
next(stream)
print("computing", flush=True)
"""

FORKED = """
import gc, os, sys, warnings
from pathlib import Path
from pyllmcancel import Engine, EngineConfig
from pyllmcancel.errors import EngineClosedError
warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads: what this is about
engine = Engine.load(EngineConfig(model=Path(sys.argv[1]), ctx_size=1024))
stream = engine.generate("hello", temperature=0.0, ignore_eos=True, max_tokens=200)
tokens = list(next(stream).tokens)

def refused(call):
    try:
        call()
    except EngineClosedError as error:
        return "forked" in str(error)

if child := os.fork():
    _, status = os.waitpid(child, 0)
    tokens += [token for delta in stream for token in delta.tokens]
    print(os.waitstatus_to_exitcode(status), len(tokens), engine.failure)
    engine.close()
else:
    with engine:
        with stream:
            answers = [refused(lambda: engine.generate("x")), refused(lambda: next(stream))]
        assert not stream.cancel()
    assert answers == [True, True], answers
    del stream, engine
    gc.collect()
"""


def run(program: str, model: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default", "-c", program, str(model)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TEST_LIMIT, check=False)


def test_a_program_that_ends_in_the_middle_of_an_answer_ends(model_files: dict[str, Path]) -> None:
    done = run(UNCLOSED, model_files["attention"])
    assert (done.returncode, done.stdout) == (0, "computing\n"), done.stderr
    assert "ResourceWarning: an engine was never closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_forked_child_is_refused_and_its_parent_notices_nothing(model_files: dict[str, Path]) -> None:
    done = run(FORKED, model_files["attention"])
    assert (done.returncode, done.stdout) == (0, "0 200 None\n"), done.stderr
    assert done.stderr == ""
