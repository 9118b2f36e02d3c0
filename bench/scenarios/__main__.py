"""``python -m bench.scenarios NAME … [--model FILE] [--json FILE]``; the exit status is 1 when one fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.parts import Part, parser_of, run_parts
from bench.scenarios import storming
from bench.scenarios.harness import Bench
from pyllmcancel.models import packaged_model_path

SCENARIOS: dict[str, Part[Bench]] = {
    "storm": storming.run,
    "soak": storming.run_soak,
}


def main() -> int:
    return run_parts(SCENARIOS, parse(), Bench)


def parse() -> argparse.Namespace:
    parser = parser_of("python -m bench.scenarios", "End-to-end acceptance against a real server", SCENARIOS)
    parser.add_argument(
        "--model", type=Path, default=packaged_model_path(), help="GGUF file; by default the packaged one"
    )
    parser.add_argument("--threads", type=int, default=0, help="the server's compute threads; 0: one per core")
    parser.add_argument("--ctx-size", type=int, default=0, help="the server's context; 0: its own choice")
    parser.add_argument("--runs", type=int, help="repetitions, where a scenario has any")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long a soak lasts; default: %(default)g")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write pictures here, where a scenario has any")
    parser.add_argument("--log", type=Path, help="append the servers' logs to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
