"""`Loading`: an engine that is on its way."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.engine import loading as loading_module
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.engine.loading import Loading
from pyllmcancel.errors import LoadCancelled, ModelLoadError
from pyllmcancel.requests.observer import Observer
from tests.support import fake_native
from tests.support.held_load import HeldLoad
from tests.support.http_asgi import LIMIT
from tests.support.http_process import until


def begin(held: HeldLoad) -> Loading:
    return Loading(EngineConfig(), Observer(), load=held)


@pytest.fixture
def engine() -> Iterator[Engine]:
    context = fake_native.Context(fake_native.Model(), n_ctx=64, n_seq_max=1, n_batch=8, n_threads=1)
    with Engine(Generation(context, EngineConfig(parallel=1), fake_native)) as engine:
        yield engine


def test_a_model_that_must_be_fetched_is_fetched_before(engine: Engine, tmp_path: Path) -> None:
    held, come, loaded = HeldLoad(), threading.Event(), []
    held.bring(engine)

    def fetch(progress: Callable[[float], bool]) -> Path:
        assert progress(0.25)
        come.wait(LIMIT)
        return tmp_path

    def load(config: EngineConfig, **options: Any) -> Engine:
        loaded.append((config.model, loading.stage, loading.progress))
        return held(config, **options)

    with closing(Loading(EngineConfig(alias="kept"), Observer(), fetches={"model": fetch}, load=load)) as loading:
        until(lambda: loading.progress, lambda progress: progress == 0.25)
        assert loading.stage == "downloading"
        come.set()
        assert loading.future.result(LIMIT) is engine
        assert loaded == [(tmp_path, "loading", 0.0)]


def test_a_fetch_that_is_given_up_loads_nothing() -> None:
    begun = threading.Event()

    def fetch(progress: Callable[[float], bool]) -> Path:
        begun.set()
        until(lambda: progress(0.5), lambda wanted: not wanted)
        raise LoadCancelled("given up")

    loading = Loading(EngineConfig(), Observer(), fetches={"model": fetch}, load=HeldLoad())
    assert begun.wait(LIMIT)
    loading.close()
    assert isinstance(loading.future.exception(), LoadCancelled)


@pytest.mark.parametrize("error", [ModelLoadError("broken"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_ends_the_load_is_kept_until_it_is_asked_for(error: BaseException) -> None:
    held = HeldLoad()
    held.bring(error)
    with closing(begin(held)) as loading:
        assert loading.future.exception(LIMIT) is error


def test_who_stops_waiting_does_not_cancel_it(engine: Engine) -> None:
    held = HeldLoad()
    with closing(begin(held)) as loading:
        assert not loading.future.cancel()
        held.bring(engine)
        assert loading.future.result(LIMIT) is engine


def test_progress_is_logged(engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(loading_module, "PROGRESS_EVERY_SECONDS", 0.0)
    held = HeldLoad()
    held.bring(engine)
    with caplog.at_level(logging.INFO), closing(begin(held)) as loading:
        loading.future.result(LIMIT)
    assert [record.message for record in caplog.records] == [
        "loading the packaged model",
        "loading: 50 %",
        "loading: 100 %",
    ]


def test_the_command_line_reads_its_options_without_the_web_framework() -> None:
    """Else the model would begin to load a second later."""
    code = "import sys, pyllmcancel.cli; print({'fastapi', 'uvicorn', 'llguidance'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"
