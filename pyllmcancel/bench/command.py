"""The command ``pyllmcancel bench cancel``, from its parsed options to its table, JSON and plots."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pyllmcancel.bench import table
from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Target
from pyllmcancel.bench.plan import Delay, Length, PlanOptions
from pyllmcancel.bench.progress_bar import ProgressBar
from pyllmcancel.bench.report import as_json, describe_server, write_json
from pyllmcancel.bench.scenarios import agents, mix, next_after_stop, queued_hang_up, typing_storm
from pyllmcancel.bench.summary import Figures, cancel_latencies
from pyllmcancel.bench.workbench import Run, Workbench, open_workbench

EXPECTED = (ExchangeError, ProcessLookupError, TimeoutError, ValueError)
Scenario = Callable[[Workbench, argparse.Namespace], Awaitable[list[Run]]]


def run(arguments: argparse.Namespace) -> int:
    """Measure, and show what was found; the exit status: 1 if nothing could be measured."""
    if arguments.plots is not None:
        # Before an hour of measuring, not after it.
        import matplotlib  # noqa: F401
    try:
        target = target_of(arguments)
        runs, document = asyncio.run(measure(target, arguments))
    except EXPECTED as error:
        sys.stderr.write(f"pyllmcancel: {error}\n")
        return 1
    except ExceptionGroup as group:
        sys.stderr.write(f"pyllmcancel: {first_of(group)}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("pyllmcancel: interrupted\n")
        return 130
    summaries = [entry["summary"] for entry in document["runs"]]
    table.show(summaries, [column(found) for found in runs], Console())
    if arguments.json is not None:
        write_json(document, arguments.json)
    if arguments.plots is not None:
        draw(runs, summaries, arguments.plots, document["server"]["model"])
    return 0 if any(found["ok"] or found["cancelled"] for found in summaries) else 1


async def measure(target: Target, arguments: argparse.Namespace) -> tuple[list[Run], dict[str, Any]]:
    """The runs, and the document that describes them."""
    with ProgressBar(Console(stderr=True)) as progress:
        async with open_workbench(
            target,
            pid=arguments.pid,
            prompt_seed=arguments.prompt_seed,
            own_account=arguments.own_account,
            progress=progress,
        ) as bench:
            server = await describe_server(bench.client)
            runs = await SCENARIOS[arguments.scenario](bench, arguments)
            options = {name: shown(value) for name, value in vars(arguments).items() if name not in HIDDEN}
            return runs, as_json(runs, server=server, options=options, prompts=bench.prompts.how)


def target_of(arguments: argparse.Namespace) -> Target:
    extra = json.loads(arguments.extra)
    if not isinstance(extra, dict):
        raise ValueError("--extra must be a JSON object")
    return Target(
        url=arguments.url,
        model=arguments.model or "",
        api=arguments.api,
        stream=arguments.stream,
        ignore_eos=arguments.ignore_eos,
        keep_alive=arguments.keep_alive,
        session_header=arguments.session_header,
        api_key=arguments.api_key or None,
        timeout=arguments.timeout,
        extra=extra,
    )


# -- scenarios ---------------------------------------------------------------------------------------------------------


async def run_mix(bench: Workbench, arguments: argparse.Namespace) -> list[Run]:
    """A run for each percentage."""
    plan = PlanOptions(
        requests=arguments.requests,
        warmup=arguments.warmup,
        delay=arguments.delay,
        prompt=Length(given(arguments.prompt_tokens, 200), arguments.prompt_stddev),
        output=Length(given(arguments.output_tokens, 60), arguments.output_stddev),
        rate=arguments.rate,
        seed=arguments.seed,
    )
    options = mix.MixOptions(
        plan=plan,
        concurrency=arguments.concurrency,
        sessions=arguments.sessions,
        wait_for_rest=arguments.wait_for_rest,
    )
    return [await mix.run(bench, replace(options, plan=replace(plan, percent=part))) for part in arguments.percent]


async def run_typing_storm(bench: Workbench, arguments: argparse.Namespace) -> list[Run]:
    options = typing_storm.TypingStormOptions(
        keys=arguments.keys,
        interval=arguments.interval,
        prompt_tokens=given(arguments.prompt_tokens, 700),
        max_tokens=given(arguments.output_tokens, 16),
        differ=arguments.differ,
        sockets=arguments.sockets,
        session=arguments.session,
        runs=arguments.runs,
    )
    return [await typing_storm.run(bench, options)]


async def run_agents(bench: Workbench, arguments: argparse.Namespace) -> list[Run]:
    options = agents.AgentsOptions(
        prompt_tokens=given(arguments.prompt_tokens, 300),
        max_tokens=given(arguments.output_tokens, 200),
        helpers=arguments.helpers,
        helper_prompt_tokens=arguments.helper_prompt_tokens,
        helper_max_tokens=arguments.helper_output_tokens,
        delay=arguments.delay,
        seed=arguments.seed,
    )
    return [await agents.run(bench, replace(options, percent=part)) for part in arguments.percent]


async def run_next_after_stop(bench: Workbench, arguments: argparse.Namespace) -> list[Run]:
    options = next_after_stop.NextAfterStopOptions(
        prompt_tokens=given(arguments.prompt_tokens, 2000),
        stop_after=arguments.stop_after,
        max_tokens=given(arguments.output_tokens, 8),
        runs=arguments.runs,
    )
    return [await next_after_stop.run(bench, options)]


async def run_queued_hang_up(bench: Workbench, arguments: argparse.Namespace) -> list[Run]:
    options = queued_hang_up.QueuedHangUpOptions(
        streams=arguments.streams,
        stream_tokens=given(arguments.output_tokens, 400),
        visitors=arguments.visitors,
        visitor_prompt_tokens=given(arguments.prompt_tokens, 200),
    )
    return [await queued_hang_up.run(bench, options)]


SCENARIOS: Mapping[str, Scenario] = {
    "mix": run_mix,
    "typing-storm": run_typing_storm,
    "agents": run_agents,
    "next-after-stop": run_next_after_stop,
    "queued-hang-up": run_queued_hang_up,
}
HIDDEN = ("run", "command", "bench_command", "api_key")


def given(value: int | None, default: int) -> int:
    return default if value is None else value


def shown(value: Any) -> Any:
    """An option's value as JSON has it."""
    match value:
        case None | str() | int() | float():
            return value
        case tuple():
            return [shown(entry) for entry in value]
        case Delay():
            return asdict(value)
        case _:
            return str(value)


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong first, where several clients were under way; faults of our own are raised as they are."""
    found = group.exceptions[0]
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    if not isinstance(found, EXPECTED):
        raise group
    return found


def column(run: Run) -> str:
    percent = run.options.get("plan", run.options).get("percent")
    return run.scenario if percent is None else f"{percent:g} % cancelled"


# -- plots -------------------------------------------------------------------------------------------------------------


def draw(runs: Sequence[Run], summaries: Sequence[Figures], folder: Path, server: str) -> None:
    """Every plot that these runs have something for."""
    from pyllmcancel.bench import plots

    latencies = {column(run): cancel_latencies(run) for run in runs}
    if any(latencies.values()):
        plots.save(plots.cancel_latency_cdf(latencies), folder, "cancel-latency")
    points = [
        (run.options["plan"]["percent"], found["goodput_tokens_per_s"])
        for run, found in zip(runs, summaries, strict=True)
        if run.scenario == "mix"
    ]
    if len(points) > 1:
        plots.save(plots.goodput({server: points}), folder, "goodput")
    for run in runs:
        figure = plots.timeline(run.exchanges, run.began_at, cpu=run.cpu, title=f"Requests over time: {column(run)}")
        plots.save(figure, folder, f"timeline-{column(run).replace(' %', '').replace(' ', '-')}")
