"""``python -m bench.models NAME … [--model FILE] [--json FILE]``; the exit status is 1 when one fails."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.models import decoding, front, killed, storm
from bench.models.settings import Settings
from bench.scenarios.report import Report
from pyllmcancel.models import packaged_model_path

PARTS: dict[str, Callable[[Settings], Coroutine[Any, Any, Report]]] = {
    "storm": storm.run,
    "front": front.run,
    "killed": killed.run,
    "decoding": decoding.run,
}


def main() -> int:
    arguments = parse()
    # Ended from outside, the servers under test are to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
    reports: list[Report] = []
    try:
        for name in arguments.names:
            reports.append(asyncio.run(PARTS[name](settings)))
            sys.stdout.write(f"{reports[-1]}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([report.as_dict() for report in reports], indent=2) + "\n")
    return 0 if all(report.passed for report in reports) else 1


def parse() -> argparse.Namespace:
    lines = [f"  {name:20} {(part.__doc__ or '').strip().splitlines()[0]}" for name, part in PARTS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench.models",
        description="Several models behind one address, on a real server:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=PARTS, metavar="NAME")
    parser.add_argument("--model", type=Path, default=packaged_model_path(), help="of which copies are served")
    parser.add_argument("--runs", type=int, help="repetitions, or requests")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write figures and checks to this file")
    parser.add_argument("--log", type=Path, help="append the server's log to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
