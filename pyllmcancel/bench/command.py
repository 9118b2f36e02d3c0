"""The command ``pyllmcancel bench cancel``, from its parsed options to its table and JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich.console import Console
from rich.progress import Progress

from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Target
from pyllmcancel.bench.load import LoadOptions, measure
from pyllmcancel.bench.report import as_json, show, write_json
from pyllmcancel.bench.workbench import open_workbench

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EXPECTED = (ExchangeError, ProcessLookupError, TimeoutError, ValueError)
Options = TypeVar("Options", bound="DataclassInstance")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and show the results; return the exit status: 1 if nothing could be measured."""
    try:
        document = asyncio.run(measured(arguments))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("pyllmcancel: interrupted\n")
        return 130
    except Exception as error:
        found = first_of(error)
        if not isinstance(found, EXPECTED):
            raise
        sys.stderr.write(f"pyllmcancel: {found}\n")
        return 1
    summary = document["summary"]
    show(summary, Console())
    if arguments.json is not None:
        write_json(document, arguments.json)
    return 0 if summary["ok"] or summary["cancelled"] else 1


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return the document of the results."""
    extra = None
    with suppress(ValueError):
        extra = json.loads(arguments.extra)
    if not isinstance(extra, dict):
        raise ValueError("--extra must be a JSON object")
    target = options_of(Target, arguments, model=arguments.model or "", api_key=arguments.api_key or None, extra=extra)
    options = options_of(LoadOptions, arguments)
    console = Console(stderr=True)
    bench = await open_workbench(target, pid=arguments.pid)
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    # A log file has no use for a progress bar.
    with Progress(console=console, disable=not console.is_terminal) as progress:
        found = await measure(bench, options, progress)
    if len(found.exchanges) < options.requests:
        sys.stderr.write("pyllmcancel: interrupted; these are the results until then\n")
    return as_json(bench, options, found)


def options_of(kind: type[Options], arguments: argparse.Namespace, **given: Any) -> Options:
    """Return options by the names of their fields; an argument that does not exist leaves the default."""
    named = {field.name: getattr(arguments, field.name) for field in fields(kind) if hasattr(arguments, field.name)}
    return kind(**named | given)


def first_of(error: Exception) -> Exception:
    """Return the first error of several clients."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
