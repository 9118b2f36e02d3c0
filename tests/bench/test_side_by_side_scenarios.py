"""The typing storm, and the stop in a long prompt, against a scripted server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bench.peers.running import RunningPeer
from bench.side_by_side import scenarios
from bench.side_by_side.measurement import Subject
from tests.bench.test_load import bench_of
from tests.support.scripted_openai import ScriptedOpenAI

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def subject_of(server: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> AsyncIterator[Subject]:
    for name, value in changed.items():
        monkeypatch.setattr(scenarios, name, value)
    async with bench_of(server) as bench:
        yield Subject(cast("RunningPeer", None), bench, effort=1.0, seed=1)


async def test_a_typing_storm_has_one_key_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("mine", None):
        server = ScriptedOpenAI()
        async with subject_of(server, monkeypatch, KEYS=3, INTERVAL=0.02, TYPED_PROMPT=12) as subject:
            figures = await scenarios.storm(subject, key)
        alone, *keys = server.asked
        assert "x-supersede" not in alone.headers
        assert {received.headers.get("x-supersede") for received in keys} == {key}
        assert len({received.fields["prompt"] for received in keys}) == 3
        assert (figures["keys_answered"], figures["errors"]) == (3, {})
        assert figures["ratio"] == pytest.approx(figures["ttft_last_key_s"] / figures["ttft_alone_s"])


@pytest.mark.parametrize(("held", "stopped"), [(50, "2 of 2"), (None, "0 of 2")])
async def test_a_long_prompt_can_be_stopped(held: int | None, stopped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedOpenAI()
    after = 0.05 if held else 60.0
    async with subject_of(server, monkeypatch, LONG_PROMPT=60, STOP_AFTER=after, NEXT_PROMPT=8) as subject:
        server.held = held
        figures = await scenarios.measure_next(subject)
    assert figures["stopped_in_prefill"] == stopped
    assert len(figures["stop_to_first_token"]) == 2
    assert figures["stop_to_next_token_s"] >= 0.0
