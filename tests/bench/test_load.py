"""The load against a scripted server: which requests are made and cut, in the server's own tokens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from rich.progress import Progress

from bench.peers.running import RunningPeer
from bench.side_by_side import scenarios
from bench.side_by_side.measurement import Subject
from pyllmcancel.bench.client import Outcome, Target
from pyllmcancel.bench.load import WARMUP, LoadOptions, measure, planned_cuts
from pyllmcancel.bench.workbench import Workbench, open_workbench
from tests.support.scripted_openai import ScriptedOpenAI

pytestmark = pytest.mark.anyio
HALF_A_SECOND = (0.5, 0.5)


@asynccontextmanager
async def bench_of(server: ScriptedOpenAI, **more: Any) -> AsyncIterator[Workbench]:
    """A workbench; its own questions about token counts are answered, and forgotten."""
    async with server.serving():
        bench = await open_workbench(Target(url=server.url, model=""), **more)
        server.asked.clear()
        yield bench


def chosen(requests: int = 1000, percent: float = 30.0, **more: Any) -> set[int]:
    cuts = planned_cuts(requests, percent, more.pop("delay", HALF_A_SECOND), **more)
    return {number for number, cut in enumerate(cuts) if cut is not None}


def test_the_choice_depends_on_the_seed_and_the_percentage_alone() -> None:
    assert chosen() == chosen(delay=(0.0, 3.0)) == {number for number in chosen(1500) if number < 1000}
    assert chosen() != chosen(seed=43)


def test_each_request_is_chosen_by_itself_so_the_share_is_only_near_the_percentage() -> None:
    # Three standard deviations of 1000 Bernoulli trials.
    assert len(chosen()) / 1000 == pytest.approx(0.3, abs=3 * (0.3 * 0.7 / 1000) ** 0.5)
    assert len({len(chosen(50, 10.0, seed=seed)) for seed in range(20)}) > 1


def test_a_request_chosen_at_a_low_percentage_is_chosen_at_a_higher_one() -> None:
    none, ten, thirty, all_of_them = (chosen(percent=percent) for percent in (0.0, 10.0, 30.0, 100.0))
    assert none < ten < thirty < all_of_them == set(range(1000))


def test_delays_cover_their_range() -> None:
    delays = [cut for cut in planned_cuts(1000, 100.0, (0.25, 2.0)) if cut is not None]
    assert 0.25 <= min(delays) < 0.3
    assert 1.95 < max(delays) <= 2.0


async def test_the_model_is_the_one_that_the_server_lists() -> None:
    async with bench_of(ScriptedOpenAI()) as bench:
        assert bench.client.target.model == "scripted"


async def test_a_process_that_does_nothing_for_the_server_is_refused(sleeper: int) -> None:
    with pytest.raises(ProcessLookupError, match=r"not the server.s process"):
        async with bench_of(ScriptedOpenAI(), pid=sleeper):
            pass


@pytest.mark.parametrize(("counts", "n_words"), [("words", 40), ("usage", 18), ("nothing", 40)])
async def test_prompts_have_the_length_asked_for_in_the_servers_own_tokens(counts: str, n_words: int) -> None:
    async with bench_of(ScriptedOpenAI(counts)) as bench:
        assert bench.prompts.how == ("words" if counts == "nothing" else "usage")
        prompt = bench.prompt(40, "name")
        assert len(prompt.split()) == n_words  # 2 * 18 + 5 is as near to 40 as words allow
        assert prompt == bench.prompt(40, "name")
        assert prompt.split()[:3] != (bench.prompt(40, "other")).split()[:3]


async def test_prompts_are_others_in_every_workbench_unless_a_seed_is_given() -> None:
    async with bench_of(ScriptedOpenAI()) as one, bench_of(ScriptedOpenAI()) as other:
        assert one.prompt(20, "name") != other.prompt(20, "name")
    async with bench_of(ScriptedOpenAI(), prompt_seed="s") as one, bench_of(ScriptedOpenAI(), prompt_seed="s") as other:
        assert one.prompt(20, "name") == other.prompt(20, "name")


async def test_exactly_those_that_were_chosen_are_cut() -> None:
    server, options = ScriptedOpenAI(), LoadOptions(requests=30, concurrency=3, percent=40.0, delay=(0.0, 0.0))
    async with bench_of(server) as bench:
        with Progress(disable=True) as progress:
            run = await measure(bench, options, progress)
            assert progress.finished
    cut = [entry for entry in run.exchanges if entry.outcome is Outcome.CANCELLED]
    assert (len(run.exchanges), len(cut)) == (30, run.chosen)
    assert run.chosen == len(chosen(30, 40.0)) > 0
    assert all(entry.outcome is Outcome.OK for entry in run.exchanges if entry not in cut)
    # A request that is cut at once may never have been read.
    assert WARMUP + 30 - len(cut) <= len(server.asked) <= WARMUP + 30


# -- the typing storm, and the stop in a long prompt -------------------------------------------------------------------


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
