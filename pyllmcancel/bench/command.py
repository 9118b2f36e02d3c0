"""The command ``pyllmcancel bench cancel``, from its parsed options to its table, JSON and plots."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich.console import Console

from pyllmcancel.bench import table
from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Target
from pyllmcancel.bench.plan import Delay, Length, PlanOptions
from pyllmcancel.bench.progress import ProgressBar
from pyllmcancel.bench.report import as_json, describe_server, write_json
from pyllmcancel.bench.scenarios import agents, mix, next_after_stop, typing_storm
from pyllmcancel.bench.scenarios.agents import AgentsOptions
from pyllmcancel.bench.scenarios.next_after_stop import NextAfterStopOptions
from pyllmcancel.bench.scenarios.typing_storm import TypingStormOptions
from pyllmcancel.bench.workbench import Run, Workbench, open_workbench

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Task = asyncio.Task[Any]

EXPECTED = (ExchangeError, ProcessLookupError, TimeoutError, ValueError)
Options = TypeVar("Options", bound="DataclassInstance")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and show the results; return the exit status: 1 if nothing could be measured."""
    if arguments.plots is not None:
        # Checked before an hour of measuring, not after it.
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
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("pyllmcancel: interrupted\n")
        return 130
    summaries = [entry["summary"] for entry in document["runs"]]
    columns = [column(run, summary) for run, summary in zip(runs, summaries, strict=True)]
    table.show(summaries, columns, Console())
    if arguments.json is not None:
        write_json(document, arguments.json)
    if arguments.plots is not None:
        from pyllmcancel.bench import pictures

        pictures.draw(dict(zip(columns, runs, strict=True)), summaries, arguments.plots, about(document))
    return 0 if any(found["ok"] or found["cancelled"] for found in summaries) else 1


async def measure(target: Target, arguments: argparse.Namespace) -> tuple[list[Run], dict[str, Any]]:
    """Do the runs, and return the document that describes them."""
    with ProgressBar(Console(stderr=True)) as progress:
        options = {"pid": arguments.pid, "prompt_seed": arguments.prompt_seed, "progress": progress}
        async with open_workbench(target, **options) as bench:
            server = await describe_server(bench.client)
            task = cast("Task", asyncio.current_task())
            with suppress(NotImplementedError):  # on Windows
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            try:
                runs = await runs_of(bench, arguments)
            except asyncio.CancelledError:  # SIGTERM, or Ctrl-C: what was measured until then is shown and written
                runs = [run for run in bench.runs if run.exchanges]
                if not runs:
                    raise
                sys.stderr.write("pyllmcancel: interrupted; these are the results until then\n")
            options = {name: shown(value) for name, value in vars(arguments).items() if name not in HIDDEN}
            return runs, as_json(runs, server=server, options=options, prompts=bench.prompts.how)


def target_of(arguments: argparse.Namespace) -> Target:
    extra = json.loads(arguments.extra)
    if not isinstance(extra, dict):
        raise ValueError("--extra must be a JSON object")
    return options_of(Target, arguments, model=arguments.model or "", api_key=arguments.api_key or None, extra=extra)


async def runs_of(bench: Workbench, arguments: argparse.Namespace) -> list[Run]:
    """Run the requested scenario, once for each percentage if it has any."""
    match arguments.scenario:
        case "mix":
            mixes = [replace(mix_of(arguments), percent=percent) for percent in arguments.percent]
            return [await mix.run(bench, options_of(mix.MixOptions, arguments, plan=plan)) for plan in mixes]
        case "agents":
            several = [options_of(AgentsOptions, arguments, percent=percent) for percent in arguments.percent]
            return [await agents.run(bench, options) for options in several]
        case "typing-storm":
            return [await typing_storm.run(bench, options_of(TypingStormOptions, arguments))]
        case _:
            return [await next_after_stop.run(bench, options_of(NextAfterStopOptions, arguments))]


def mix_of(arguments: argparse.Namespace) -> PlanOptions:
    return options_of(
        PlanOptions,
        arguments,
        prompt=Length(arguments.prompt_tokens or 200, arguments.prompt_stddev),
        output=Length(arguments.output_tokens or 60, arguments.output_stddev),
        percent=0.0,
    )


def options_of(kind: type[Options], arguments: argparse.Namespace, **given: Any) -> Options:
    """Return options by the names of their fields; an argument that is None, or does not exist, leaves the default."""
    named = {field.name: getattr(arguments, field.name, None) for field in fields(kind)} | given
    return kind(**{name: value for name, value in named.items() if value is not None})


HIDDEN = ("run", "command", "bench_command", "api_key")


def shown(value: Any) -> Any:
    """Return an option's value as JSON has it."""
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
    """Return the first error of several clients. If it is a fault of our own, raise the group as it is."""
    found = group.exceptions[0]
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    if not isinstance(found, EXPECTED):
        raise group
    return found


def column(run: Run, summary: Mapping[str, Any]) -> str:
    """Return the head of a run's column: the share that was to be cut, and the share that was."""
    percent = run.options.get("plan", run.options).get("percent")
    if percent is None:
        return run.scenario
    cut = 100 * summary["hung_up"] / max(summary["requests"], 1)
    return f"{percent:g} % asked, {cut:.0f} % cut"


def about(document: Mapping[str, Any]) -> str:
    """Return a short description of the measurement, for the plots."""
    return f"{document['server']['model']}, scenario {document['runs'][0]['scenario']}"
