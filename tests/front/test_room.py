"""Models that cannot be loaded take no other model's room and say why; cells count before the first load."""

import asyncio
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.front.fits import DoesNotFit, Fits
from pyllmcancel.front.replica import State
from pyllmcancel.front.spec import Spec
from pyllmcancel.front.worker import ModelProcess, reason_in
from tests.front.world import MODEL, RouterWorld, open_router, opened

pytestmark = pytest.mark.anyio


def file_of(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.gguf"
    path.write_bytes(MODEL)
    return {"path": path}


async def test_a_model_that_cannot_be_loaded_takes_no_other_ones_room(tmp_path: Path) -> None:
    specs = {name: file_of(tmp_path, name) for name in "ab"}
    async with open_router(tmp_path, "a", "b", most=1, specs=specs) as world:
        assert (await world.complete("a").end()).status == 200
        (tmp_path / "b.unfit").write_text("pyllmcancel: it is no model")
        refused = await world.complete("b").end()
        assert refused.failure == (503, "model_not_loaded")
        assert refused.json()["error"]["message"] == "the model b could not be loaded: it is no model"
        assert (await world.status("b"))["failed"] is True
        assert world.keeper.replica("a").state is State.LOADED
        assert (world.starts("a"), world.starts("b")) == (1, 0)
        (tmp_path / "b.unfit").unlink()
        await world.load("b")
        assert world.keeper.replica("a").state is State.UNLOADED


@pytest.mark.long
async def test_cells_count_before_the_first_load(tmp_path: Path) -> None:
    specs = {name: file_of(tmp_path, name) for name in "ab"}
    gib = 1 << 30
    async with open_router(tmp_path, "a", "b", room=16 * gib, specs=specs) as world:
        for name in "ab":
            (tmp_path / f"{name}.needs").write_text(json.dumps({"weights": 4, "cells": 9 * gib, "buffers": 1}))
        assert (await world.complete("a").end()).status == 200
        assert (await world.complete("b").end()).status == 200
        assert world.keeper.replica("a").state is State.UNLOADED
        assert (await world.complete("a").end()).status == 200
        assert world.log_of("a").count("measured") == 1  # its file is the same


@pytest.mark.long
@pytest.mark.parametrize("told", ["{}", "no JSON", "[]", '{"weights": "many"}'])
async def test_what_cannot_be_measured_is_loaded_without(tmp_path: Path, told: str) -> None:
    async with open_router(tmp_path, "a", room=1 << 30, specs={"a": file_of(tmp_path, "a")}) as world:
        (tmp_path / "a.needs").write_text(told)
        assert (await world.complete("a").end()).status == 200


@pytest.mark.long
@pytest.mark.parametrize(("status", "fits"), [(2, False), (1, True), (-9, True), (-11, False)])
async def test_only_a_process_that_says_why_or_crashes_refuses(tmp_path: Path, status: int, *, fits: bool) -> None:
    end = f"os.kill(os.getpid(), {-status})" if status < 0 else f"sys.exit({status})"
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\nsys.stderr.write('no model\\n')\nsys.stderr.flush()\n{end}")
    spec = Spec(name="a", options=(), **file_of(tmp_path, "a"))
    found = Fits(lambda *_: (["/usr/bin/env", "python3", "-I", str(script)], {}), tmp_path, lambda _: None)
    if fits:
        assert await found.need(spec) == 0
        return
    with pytest.raises(DoesNotFit, match=r"the model a could not be loaded.*: no model"):
        await found.need(spec)


@pytest.mark.long
async def test_a_file_is_looked_at_beside_the_event_loop(tmp_path: Path) -> None:
    looked_at, may_go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def check(_path: Path) -> None:
        loop.call_soon_threadsafe(looked_at.set)
        may_go_on.wait()

    specs = {"a": file_of(tmp_path, "a")}
    world = RouterWorld(tmp_path, "a", "b", room=1 << 40, specs=specs, check=check)
    async with opened(world):
        try:
            assert (await world.complete("b").end()).status == 200
            request = world.complete("a", "mine")
            await looked_at.wait()
            assert (await world.complete("b").end()).status == 200
            assert (await world.status("a"))["value"] == "loading"
        finally:
            may_go_on.set()
        assert (await request.end()).status == 200


# -- what must not leave a model hanging ------------------------------------------------------------------------------


async def test_an_unreadable_log_hangs_nothing(monkeypatch: pytest.MonkeyPatch, world: RouterWorld) -> None:
    take = ModelProcess._take_lines
    monkeypatch.setattr(ModelProcess, "_take_lines", lambda self, _: take(self, ["[" * 60_000]))
    world.let_die("a", 2)
    assert (await world.complete("a").end()).failure == (503, "model_not_loaded")
    assert world.keeper.replica("a").state is State.FAILED


async def test_one_model_that_cannot_be_started_holds_up_no_other(tmp_path: Path) -> None:
    specs: dict[str, dict[str, Any]] = {name: {"starts": True} for name in "ab"}
    world = RouterWorld(tmp_path, "a", "b", specs=specs)
    command = world.keeper._command

    def refused(spec: Spec, socket: Path) -> Any:
        if spec.name == "a":
            raise OSError("no such folder")
        return command(spec, socket)

    world.keeper._command = refused
    async with opened(world):
        await world.until_state("b", State.LOADED)
        answer = await world.complete("a").end()
        assert answer.status == 503
        assert "no such folder" in answer.json()["error"]["message"]
        assert (await world.get("/health")).status == 200


@pytest.mark.long
@pytest.mark.parametrize("way", ["removed", "too large"])
async def test_a_model_of_the_start_that_never_comes_keeps_no_server_from_being_ready(tmp_path: Path, way: str) -> None:
    spec = {"starts": True} | file_of(tmp_path, "a")
    if way == "too large":
        (tmp_path / "a.needs").write_text(json.dumps({"weights": 4, "cells": 9 << 30}))
    async with open_router(tmp_path, "a", "b", room=1 << 30, loads=("a",), specs={"a": spec}) as world:
        if way == "removed":
            await world.until(lambda: world.starts("a"))
            assert (await world.get("/health")).status == 503
            world.specs = [one for one in world.specs if one.name != "a"]
            await world.get("/models?reload=1")
        await world.until(lambda: not world.keeper.starting)
        assert (await world.get("/health")).status == 200


@pytest.mark.long
async def test_a_shutdown_does_not_cut_the_drain_of_a_model_that_is_being_unloaded_short(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld
) -> None:
    signals: list[int] = []
    assert (await world.complete("a").end()).status == 200
    process = world.keeper.processes["a"]
    monkeypatch.setattr(process._child, "signal", lambda one: one == signal.SIGCONT or signals.append(one))
    process.stop(patience=60.0)
    process.stop(patience=60.0)
    assert signals == [signal.SIGTERM]  # a second one would end the drain
    process.stop(patience=60.0, again=True)
    assert signals == [signal.SIGTERM] * 2
    monkeypatch.undo()
    process.stop(kill=True, patience=0.0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("pyllmcancel: there is no file a.gguf", "there is no file a.gguf"),
        ("02:59:33.026 CRITICAL pyllmcancel.server: the model could not be loaded: no memory", "no memory"),
        ("02:59:33.026 ERROR   pyllmcancel.engine: a step failed", "a step failed"),
        (json.dumps({"level": "critical", "message": "the model could not be loaded: no memory"}), "no memory"),
        ("GGML_ASSERT(n > 0) failed", "GGML_ASSERT(n > 0) failed"),
        ('{"no": "message"}', '{"no": "message"}'),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_a_reason_is_told_without_the_logs_own_fields(line: str, reason: str) -> None:
    assert reason_in(line) == reason
