"""Scenarios against a scripted server: what they ask for, and what they make of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Exchange, Outcome, Target
from pyllmcancel.bench.plan import Delay, Length, PlanOptions, make_plan
from pyllmcancel.bench.scenarios import agents, mix, next_after_stop, typing_storm
from pyllmcancel.bench.workbench import Workbench, open_workbench
from tests.support.scripted_openai import ScriptedOpenAI

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def bench_of(server: ScriptedOpenAI, *, held: int | None = None, **more: Any) -> AsyncIterator[Workbench]:
    """A workbench; its own questions about token counts are answered, and forgotten."""
    async with server.serving(), open_workbench(Target(url=server.url, model=""), **more) as bench:
        server.asked.clear()
        server.held = held
        yield bench


class Watcher:
    """Records the calls that a progress bar would get."""

    def __init__(self) -> None:
        self.expected = 0
        self.ended: list[Exchange] = []

    def begin(self, text: str, total: int) -> None:
        self.expected += total

    def count(self, exchange: Exchange) -> None:
        self.ended.append(exchange)

    def end(self) -> None: ...


async def test_the_model_is_the_one_that_the_server_lists() -> None:
    async with bench_of(ScriptedOpenAI()) as bench:
        assert bench.client.target.model == "scripted"


async def test_a_server_that_is_not_there_is_an_error() -> None:
    server = ScriptedOpenAI()
    async with server.serving():
        pass
    with pytest.raises(ExchangeError, match="connect_failed"):
        async with open_workbench(Target(url=server.url, model="")):
            pass


async def test_a_process_that_does_nothing_for_the_server_is_refused(sleeper: int) -> None:
    with pytest.raises(ProcessLookupError, match=r"not the server.s process"):
        async with bench_of(ScriptedOpenAI(), pid=sleeper):
            pass


@pytest.mark.parametrize(("counts", "n_words"), [("tokenize", 40), ("usage", 18), ("nothing", 40)])
async def test_prompts_have_the_length_asked_for_in_the_servers_own_tokens(counts: str, n_words: int) -> None:
    async with bench_of(ScriptedOpenAI(counts)) as bench:
        assert bench.prompts.how == ("words" if counts == "nothing" else counts)
        prompt = await bench.prompt(40, "name")
        assert len(prompt.split()) == n_words  # 2 * 18 + 5 is as near to 40 as words allow
        assert prompt == await bench.prompt(40, "name")
        assert prompt.split()[:3] != (await bench.prompt(40, "other")).split()[:3]


async def test_prompts_are_others_in_every_workbench_unless_a_seed_is_given() -> None:
    async with bench_of(ScriptedOpenAI()) as one, bench_of(ScriptedOpenAI()) as other:
        assert await one.prompt(20, "name") != await other.prompt(20, "name")
    async with bench_of(ScriptedOpenAI(), prompt_seed="s") as one, bench_of(ScriptedOpenAI(), prompt_seed="s") as other:
        assert await one.prompt(20, "name") == await other.prompt(20, "name")


async def test_a_mix_cuts_exactly_those_that_the_plan_has_chosen() -> None:
    server, watcher = ScriptedOpenAI(), Watcher()
    plan = PlanOptions(requests=30, warmup=4, percent=40.0, prompt=Length(10, 3), output=Length(3))
    async with bench_of(server, progress=watcher) as bench:
        run = await mix.run(bench, mix.MixOptions(plan=plan, concurrency=3))
    cut = [entry for entry in run.exchanges if entry.outcome is Outcome.CANCELLED]
    assert len(run.exchanges) == 30
    assert len(cut) == run.figures["chosen"] == sum(request.cut_after is not None for request in make_plan(plan))
    assert all(entry.outcome is Outcome.OK for entry in run.exchanges if entry not in cut)
    assert {entry.ask.lane for entry in run.exchanges} == {0, 1, 2}
    assert len(watcher.ended) == watcher.expected == 34
    asked_for = sorted(request.prompt_tokens for request in make_plan(plan))
    assert sorted(len(str(entry.ask.prompt).split()) for entry in run.exchanges) == asked_for


async def test_arrivals_do_not_wait_for_answers() -> None:
    server = ScriptedOpenAI()
    plan = PlanOptions(requests=6, prompt=Length(10), rate=1000.0)
    async with bench_of(server) as bench:
        server.together = 6  # none is answered before all have asked
        run = await mix.run(bench, mix.MixOptions(plan=plan, supersede_keys=2))
    assert [entry.outcome for entry in run.exchanges] == [Outcome.OK] * 6
    assert len({entry.ask.supersede for entry in run.exchanges}) == 2


async def test_a_typing_storm_has_one_key_and_types_at_its_pace() -> None:
    server = ScriptedOpenAI()
    options = typing_storm.TypingStormOptions(keys=3, interval=0.02, prompt_tokens=12, output_tokens=2)
    async with bench_of(server) as bench:
        run = await typing_storm.run(bench, options)
    alone, *keys = server.asked
    assert "x-supersede" not in alone.headers
    assert len({received.headers["x-supersede"] for received in keys}) == 1
    assert len({received.fields["prompt"] for received in keys}) == 3
    alone_ended_at = run.exchanges[0].ended_at
    assert alone_ended_at is not None
    for number, key in enumerate(run.exchanges[1:]):
        assert key.began_at - alone_ended_at >= number * options.interval
    assert run.figures["keys_answered"] == 3
    assert run.figures["ratio"] == pytest.approx(run.figures["ttft_last_key_s"] / run.figures["ttft_alone_s"])


async def test_prompts_that_grow_begin_alike() -> None:
    server = ScriptedOpenAI()
    options = typing_storm.TypingStormOptions(keys=3, interval=0.0, prompt_tokens=12, differ="tail", supersede=False)
    async with bench_of(server) as bench:
        await typing_storm.run(bench, options)
    keys = sorted(server.prompts[1:], key=len)
    assert keys[1].startswith(keys[0])
    assert keys[2].startswith(keys[1])
    assert all("x-supersede" not in received.headers for received in server.asked)


async def test_a_storm_closes_the_outdated_socket_when_the_next_key_comes() -> None:
    server = ScriptedOpenAI()
    server.held_below = 12  # all but the last key
    options = typing_storm.TypingStormOptions(keys=3, interval=0.02, prompt_tokens=12, differ="tail", sockets="closed")
    async with bench_of(server) as bench:
        run = await typing_storm.run(bench, options)
    _, first, second, last = run.exchanges
    assert [entry.outcome for entry in (first, second, last)] == [Outcome.CANCELLED, Outcome.CANCELLED, Outcome.OK]
    assert first.ended_at is not None
    assert first.ended_at <= second.began_at


async def test_a_storm_keeps_its_sockets_until_the_last_answer_is_there() -> None:
    server = ScriptedOpenAI()
    server.held_below = 12  # all but the last key
    options = typing_storm.TypingStormOptions(keys=3, interval=0.02, prompt_tokens=12, differ="tail", sockets="kept")
    async with bench_of(server) as bench:
        run = await typing_storm.run(bench, options)
    _, first, second, last = run.exchanges
    assert [entry.outcome for entry in (first, second, last)] == [Outcome.CANCELLED, Outcome.CANCELLED, Outcome.OK]
    assert last.ended_at is not None
    assert last.ended_at <= min(first.ended_at or 0.0, second.ended_at or 0.0)


async def test_the_next_request_follows_the_stop_at_once() -> None:
    server = ScriptedOpenAI()
    options = next_after_stop.NextAfterStopOptions(prompt_tokens=60, stop_after=0.05, next_prompt_tokens=8, runs=2)
    async with bench_of(server, held=50) as bench:
        run = await next_after_stop.run(bench, options)
    assert run.figures["stopped_in_prefill"] == "2 of 2"
    long = [entry for entry in run.exchanges if entry.ask.label == "long"]
    following = [entry for entry in run.exchanges if entry.ask.label == "next"]
    for stopped, after in zip(long, following, strict=True):
        assert stopped.latency is not None
        assert stopped.latency >= 0.04
        assert stopped.ended_at is not None
        assert stopped.ended_at <= after.began_at
        assert after.token_at[0] - stopped.ended_at <= run.figures["stop_to_next_token_worst_s"]


async def test_a_prompt_that_is_done_before_the_stop_is_not_called_stopped() -> None:
    options = next_after_stop.NextAfterStopOptions(prompt_tokens=20, stop_after=5.0, runs=1)
    async with bench_of(ScriptedOpenAI()) as bench:
        run = await next_after_stop.run(bench, options)
    assert run.figures["stopped_in_prefill"] == "0 of 1"


async def test_auxiliary_requests_come_beside_the_long_answer_until_it_is_done() -> None:
    options = agents.AgentsOptions(prompt_tokens=20, output_tokens=300, helpers=2, percent=50.0, delay=Delay(0.0, 0.0))
    async with bench_of(ScriptedOpenAI()) as bench:
        run = await agents.run(bench, options)
    auxiliary = [entry for entry in run.exchanges if entry.ask.label == "auxiliary"]
    assert run.figures["auxiliary"] == len(auxiliary) > 0
    assert run.figures["auxiliary_failed"] == 0
    assert run.figures["long_answer"] == "ok"
    assert run.figures["long_answer_unchanged"] is True
    assert len({entry.ask.supersede for entry in auxiliary}) == 2
