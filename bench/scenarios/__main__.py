"""``python -m bench.scenarios NAME … [--model FILE] [--json FILE]``; the exit status is 1 when one fails."""

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

from bench.scenarios import flood, long_soak, resume, storming, tabby
from bench.scenarios.harness import Bench
from bench.scenarios.report import Report
from pyllmcancel.models import packaged_model_path

Scenario = Callable[[Bench], Coroutine[Any, Any, Report]]

SCENARIOS: dict[str, Scenario] = {
    "tabby": tabby.run,
    "flood": flood.run,
    "resume": resume.run,
    "storm": storming.run,
    "soak": storming.run_soak,
    "long-soak": long_soak.run,
    "judge-soak": long_soak.run_judge,
}


def main() -> int:
    arguments = parse()
    # Ended from outside, the servers under test are to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(**{field.name: getattr(arguments, field.name) for field in fields(Bench)})
    reports: list[Report] = []
    try:
        for name in arguments.names:
            reports.append(asyncio.run(SCENARIOS[name](bench)))
            sys.stdout.write(f"{reports[-1]}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    if arguments.json is not None:
        results = {"model": bench.model.name, "scenarios": [report.as_dict() for report in reports]}
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(report.passed for report in reports) else 1


def parse() -> argparse.Namespace:
    lines = [f"  {name:20} {(scenario.__doc__ or '').strip().splitlines()[0]}" for name, scenario in SCENARIOS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench.scenarios",
        description="End-to-end acceptance against a real server:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=SCENARIOS, metavar="NAME")
    parser.add_argument(
        "--model", type=Path, default=packaged_model_path(), help="GGUF file; by default the packaged one"
    )
    parser.add_argument("--threads", type=int, default=0, help="the server's compute threads; 0: one per core")
    parser.add_argument("--ctx-size", type=int, default=0, help="the server's context; 0: its own choice")
    parser.add_argument("--runs", type=int, help="repetitions, where a scenario has any")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long a soak lasts; default: %(default)g")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write pictures here, where a scenario has any")
    into = Path("build/long-soak")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", default=into, help="files of a long soak; default: %(default)s"
    )
    parser.add_argument("--share", type=float, default=0.5, help="a long soak's limit in cores; default: %(default)g")
    parser.add_argument("--json", type=Path, help="write figures and checks to this file")
    parser.add_argument("--log", type=Path, help="append the servers' logs to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
