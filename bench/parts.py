"""The parts of a bench that end with a report, as a command line names them."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.scenarios.report import Report


class HasModel(Protocol):
    @property
    def model(self) -> Path: ...


S = TypeVar("S", bound=HasModel)
Part = Callable[[S], Coroutine[Any, Any, Report]]


def parser_of(prog: str, text: str, parts: Mapping[str, Part[S]]) -> argparse.ArgumentParser:
    """Return a parser of the parts' names, and of the file for their results; its help describes each part."""
    lines = [f"  {name:20} {(part.__doc__ or '').strip().splitlines()[0]}" for name, part in parts.items()]
    parser = argparse.ArgumentParser(
        prog=prog,
        description="\n".join([f"{text}:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=parts, metavar="NAME")
    parser.add_argument("--json", type=Path, help="write figures and checks to this file")
    return parser


def run_parts(parts: Mapping[str, Part[S]], arguments: argparse.Namespace, settings_type: type[S]) -> int:
    """Run the named parts one after the other; return the exit status, which is 1 if one fails."""
    # Ended from outside, the servers under test are to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = [field.name for field in fields(settings_type)]  # type: ignore[arg-type]
    settings = settings_type(**{name: getattr(arguments, name) for name in names})
    reports: list[Report] = []
    try:
        for name in arguments.names:
            reports.append(asyncio.run(parts[name](settings)))
            sys.stdout.write(f"{reports[-1]}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    if arguments.json is not None:
        results = {"model": settings.model.name, "scenarios": [report.as_dict() for report in reports]}
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(report.passed for report in reports) else 1
